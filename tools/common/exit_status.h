// The exit statuses of the tutti command. `tutti run` and `tutti perf` also return the statuses of their ranks; see
// tools/run/launch.h.
#pragma once

namespace tutti::tool {

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;  // the command was tried and failed, or a result was wrong
inline constexpr int kExitUsage = 2;    // the command line is invalid; nothing was tried

}  // namespace tutti::tool
