// The exit statuses of the tutti command. Commands that start ranks with launch() (tools/run/launch.h) can also return
// the status of a rank, or the other statuses that are defined there.
#pragma once

namespace tutti::tool {

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;  // the command line was valid, but the command failed or found a wrong result
// The command line, or a TUTTI_* variable, is invalid, or it asks for something that is not supported. In most cases
// the command did not begin its work.
inline constexpr int kExitUsage = 2;

}  // namespace tutti::tool
