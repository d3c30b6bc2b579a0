// Running a job's ranks as processes of this machine, from their start to the moment when nothing of them is left.
//
// Used by `tutti run` and `tutti perf`. Call it from the main thread of a process that has no other threads and no
// other use for its children: every process that the job leaves behind is killed at the end. See docs/run.md for what
// users are promised.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/elastic.h"
#include "tutti/result.h"

namespace tutti::tool {

// Which lines get "[rank] " in front.
enum class Prefix : std::uint8_t { kNone, kErrors, kAll };

struct LaunchOptions {
  std::string name;                       // who speaks in messages: "tutti run"
  std::vector<std::string> command;       // program and arguments
  std::int32_t ranks = 1;                 // 1 .. kMaxLocalRanks
  std::chrono::milliseconds grace{2000};  // what the others get to speak after a first failure
  std::chrono::milliseconds timeout{0};   // of the whole job; 0: none
  Prefix prefix = Prefix::kAll;
  std::optional<ElasticBounds> elastic{};  // dead ranks are replaced
};

inline constexpr std::int32_t kMaxLocalRanks = 4096;
inline constexpr std::chrono::milliseconds kKillAfter{1000};  // from SIGTERM to SIGKILL

// Exit statuses of a job that ended for a reason other than its ranks'.
inline constexpr int kExitTimeout = 124;
inline constexpr int kExitSignalBase = 128;  // + the signal's number

// Runs the job to its end and returns its exit status: 0 when every rank returned 0, else that of the first failure,
// 128 + signal where a signal ended it. What went wrong is told on stderr. An error is returned only when nothing was
// started.
Result<int> launch(const LaunchOptions& options);

}  // namespace tutti::tool
