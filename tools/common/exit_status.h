// The exit statuses of the tutti command. `tutti run` and `tutti perf` also return the statuses of their ranks; see
// tools/run/launch.h.
#pragma once

namespace tutti::tool {

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;  // the command began its work and failed, or found a wrong result
// The command line, or a TUTTI_* variable, is invalid. The command did not begin its work.
inline constexpr int kExitUsage = 2;

}  // namespace tutti::tool
