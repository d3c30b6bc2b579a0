// Exit statuses of the tutti command. `tutti run` and `tutti perf` also pass on those of their ranks: see
// tools/run/launch.h.
#pragma once

namespace tutti::tool {

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;  // what was asked for was tried and failed, or a result was wrong
inline constexpr int kExitUsage = 2;    // the command line is not understood; nothing was tried

}  // namespace tutti::tool
