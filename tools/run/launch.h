// launch(): runs the ranks of a job as processes of this machine, and returns when all of them have ended and the
// processes that they left behind were killed. end_children() states an exception.
//
// Used by `tutti run`, `tutti perf` and others. It must be called from the main thread of a process that has no other
// threads. During the call, this process must not start other children, because at the end every child that did not
// exist before the call is killed. docs/run.md describes the behaviour on which users may rely.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/elastic.h"
#include "tutti/result.h"

namespace tutti::tool {

// The lines of the ranks' output that get the prefix "[rank] ": none, those of stderr, or all.
enum class Prefix : std::uint8_t { kNone, kErrors, kAll };

struct LaunchOptions {
  std::string name;                  // name of the command in messages: "tutti run"
  std::vector<std::string> command;  // program and arguments
  std::int32_t ranks = 1;            // 1 .. kMaxLocalRanks
  // Grace period: the time that the other ranks have to report their errors after the first failure, before they get
  // SIGTERM.
  std::chrono::milliseconds grace{2000};
  std::chrono::milliseconds timeout{0};  // timeout of the whole job; 0: none
  Prefix prefix = Prefix::kAll;
  std::string preload{};                   // path of a library that the ranks load before all others; empty: none
  std::optional<ElasticBounds> elastic{};  // set: an elastic job, in which ranks that fail are replaced
};

inline constexpr std::int32_t kMaxLocalRanks = 4096;
// Time from SIGTERM to SIGKILL. After a signal to this process, LaunchOptions::grace counts instead if it is longer.
inline constexpr std::chrono::milliseconds kKillAfter{1000};

// Exit statuses of a job: kExitTimeout after LaunchOptions::timeout; kExitSignalBase plus the number of the signal if a
// signal killed a rank, or if this process received SIGINT, SIGTERM or SIGHUP and ended the job (SIGPIPE if the reader
// of stdout closed it).
inline constexpr int kExitTimeout = 124;
inline constexpr int kExitSignalBase = 128;

// Runs the job to its end and returns its exit status: 0 if every rank ended with status 0, otherwise the status of the
// first failure, which is 128 + N if signal N killed the rank. If the first failure was an exit status below 128, a
// rank that is killed by a signal in the grace period counts as the first failure instead. If this process ends the job
// before a rank has failed, for example after the timeout or after a signal, the status is that of this cause. In an
// elastic job, failures after which the job continued do not count. Problems are reported on stderr. Returns an error
// only if no process was started.
Result<int> launch(const LaunchOptions& options);

}  // namespace tutti::tool
