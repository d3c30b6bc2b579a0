// launch(): runs the ranks of a job as processes of this machine, and returns when no process of the job is left.
//
// Used by `tutti run` and `tutti perf`. It must be called from the main thread of a process that has no other threads
// and no other use for its children, because every process that the job leaves behind is killed at the end.
// docs/run.md describes the behaviour on which users may rely.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/elastic.h"
#include "tutti/result.h"

namespace tutti::tool {

// The lines that get the prefix "[rank] ".
enum class Prefix : std::uint8_t { kNone, kErrors, kAll };

struct LaunchOptions {
  std::string name;                  // name of the command in messages: "tutti run"
  std::vector<std::string> command;  // program and arguments
  std::int32_t ranks = 1;            // 1 .. kMaxLocalRanks
  // Grace period: the time that the other ranks have to report their errors after the first failure.
  std::chrono::milliseconds grace{2000};
  std::chrono::milliseconds timeout{0};  // timeout of the whole job; 0: none
  Prefix prefix = Prefix::kAll;
  std::optional<ElasticBounds> elastic{};  // set: ranks that die are replaced
};

inline constexpr std::int32_t kMaxLocalRanks = 4096;
inline constexpr std::chrono::milliseconds kKillAfter{1000};  // time from SIGTERM to SIGKILL

// Exit statuses of a job that ended for another reason than the exit of its ranks.
inline constexpr int kExitTimeout = 124;
inline constexpr int kExitSignalBase = 128;  // plus the number of the signal

// Runs the job to its end and returns its exit status: 0 if every rank returned 0, otherwise that of the first
// failure, which is 128 + N if signal N ended the rank. Problems are reported on stderr. Returns an error only if
// nothing was started.
Result<int> launch(const LaunchOptions& options);

}  // namespace tutti::tool
