// fault_seeds: runs scenarios with faults that are derived from seeds, and judges the outcomes (docs/reliability.md).
//
//   --seed N            runs one seed and prints its description
//   --seeds A..B        runs a range of seeds; runs every 16th twice, to check that a seed replays exactly
//   --every-step A..B   takes only the calls of these seeds; kills a rank before each of its steps, and then stops it
//                       forever before each of its steps
//   --most-steps N      with --every-step: only about N steps of each seed, at equal distances
//   --survivors         the ranks of these scenarios continue after their calls: they agree and shrink, some
//                       of their calls are uniform, and another rank dies or stops during that
//   --verbose           prints the description of every run
//
// Exit status 1 if an invariant was broken. The output then shows how to repeat the run.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "faults/run.h"

namespace tutti::faults {
namespace {

constexpr unsigned kMostSecondsPerRun = 100;  // of real time; only a loop that never pauses lasts longer
constexpr int kMostFailures = 5;              // the program stops after this many failures
constexpr std::uint64_t kReplayEvery = 16;

std::uint64_t seed_at_work = 0;

void too_long(int) {
  char text[96];
  const int bytes = std::snprintf(text, sizeof(text), "seed %llu does not end: some code never pauses\n",
                                  static_cast<unsigned long long>(seed_at_work));
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, static_cast<std::size_t>(bytes));
  _exit(1);
}

struct Options {
  std::uint64_t first = 1;
  std::uint64_t last = 0;  // 0: not given
  bool every_step = false;
  std::uint64_t most_steps = UINT64_MAX;  // of each seed, with every_step
  EndingMode ends = EndingMode::kAfterCalls;
  bool verbose = false;
};

struct Counts {
  std::uint64_t runs = 0;
  std::uint64_t failures = 0;
  std::uint64_t right = 0;    // number of calls
  std::uint64_t errors = 0;   // number of calls
  std::uint64_t unnamed = 0;  // number of these errors that name no rank
};

class Runner {
 public:
  explicit Runner(const Options& options) : options_(options), plan_cache_(std::make_shared<VerifiedPlanCache>(true)) {}

  Counts run() {
    for (std::uint64_t seed = options_.first; seed <= options_.last && counts_.failures < kMostFailures; ++seed) {
      Scenario scenario = draw_scenario(seed, options_.ends);
      const Outcome calm = check(scenario, "");
      if (options_.every_step) {
        every_step(scenario, calm.extent);
        continue;
      }
      draw_faults(scenario, calm.extent);
      const Outcome outcome = check(scenario, "");
      if (seed % kReplayEvery == 0 && !(outcome == run_once(scenario))) {
        print_failure(scenario, outcome, {"the same seed gave a different run"}, "");
      }
      if (options_.ends == EndingMode::kAfterCalls) continue;
      draw_late_fault(scenario, outcome.extent);
      check(scenario, "");
    }
    return counts_;
  }

 private:
  Outcome run_once(const Scenario& scenario) {
    seed_at_work = scenario.seed;
    alarm(kMostSecondsPerRun);
    Outcome outcome = faults::run(scenario, plan_cache_);
    alarm(0);
    ++counts_.runs;
    return outcome;
  }

  Outcome check(const Scenario& scenario, const std::string& datagram) {
    Outcome outcome = run_once(scenario);
    for (const RankOutcome& rank : outcome.ranks) {
      for (const CallOutcome& call : rank.calls) {
        ++(call.error ? counts_.errors : counts_.right);
        if (call.error && call.error->rank < 0) ++counts_.unnamed;
      }
    }
    const std::vector<std::string> found = judge(scenario, outcome);
    if (!found.empty()) {
      print_failure(scenario, outcome, found, datagram);
    } else if (options_.verbose) {
      fmt::print("{}", describe(scenario, outcome));
    }
    return outcome;
  }

  void print_failure(const Scenario& scenario, const Outcome& outcome, const std::vector<std::string>& found,
                     const std::string& datagram) {
    ++counts_.failures;
    fmt::print("{}", describe(scenario, outcome));
    for (const std::string& what : found) fmt::print("  BROKEN: {}\n", what);
    const bool some_steps = options_.most_steps != UINT64_MAX;
    fmt::print("  again: fault_seeds{}{} --{} {}{}\n", options_.ends == EndingMode::kAfterCalls ? "" : " --survivors",
               some_steps ? fmt::format(" --most-steps {}", options_.most_steps) : "",
               options_.every_step ? "every-step" : "seed", scenario.seed, datagram);
    std::fflush(stdout);
  }

  void every_step(const Scenario& calm, const Extent& extent) {
    std::uint64_t all = 0;
    for (const std::uint64_t steps : extent.steps) all += steps;
    const std::uint64_t distance = std::max<std::uint64_t>(1, (all - 1) / options_.most_steps + 1);
    for (std::uint32_t rank = 0; rank < calm.sim.ranks; ++rank) {
      for (std::uint64_t step = 1 + rank % distance; step <= extent.steps[rank]; step += distance) {
        for (const SimFaultKind kind : {SimFaultKind::kKill, SimFaultKind::kStop}) {
          if (counts_.failures >= kMostFailures) return;
          Scenario scenario = calm;
          scenario.sim.faults = {{.kind = kind, .rank = rank, .at_step = step, .lasts_ns = kForeverNs}};
          check(scenario, "");
        }
      }
    }
  }

  Options options_;
  std::shared_ptr<VerifiedPlanCache> plan_cache_;  // shared by all runs, so that each plan is verified once
  Counts counts_;
};

bool read_number(std::string_view digits, std::uint64_t& value) {
  const char* const end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, value);
  return error == std::errc() && stopped == end && value > 0;
}

bool read_range(std::string_view text, Options& options) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return read_number(text, options.first) && read_number(text, options.last);
  return read_number(text.substr(0, dots), options.first) && read_number(text.substr(dots + 2), options.last) &&
         options.first <= options.last;
}

std::optional<Options> read_options(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    const bool takes_seeds = word == "--seed" || word == "--seeds" || word == "--every-step";
    if (word == "--survivors") {
      options.ends = EndingMode::kWithSurvivors;
    } else if (word == "--verbose") {
      options.verbose = true;
    } else if (word == "--most-steps" && i + 1 < count && read_number(words[i + 1], options.most_steps)) {
      ++i;
    } else if (takes_seeds && i + 1 < count && read_range(words[++i], options)) {
      options.verbose |= word == "--seed";
      options.every_step |= word == "--every-step";
    } else {
      fmt::print(stderr, "fault_seeds: {} is no option, or lacks a number from 1 or a range A..B\n", word);
      return std::nullopt;
    }
  }
  if (options.last != 0) return options;
  fmt::print(stderr, "fault_seeds: give --seed N, --seeds A..B or --every-step A..B\n");
  return std::nullopt;
}

}  // namespace
}  // namespace tutti::faults

// Binds the program to one core that no other process of this program has, if there is one. Only one rank runs at a
// time, and a turn that passes between threads of one core takes less than half of the processor time.
static void take_one_core() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    const std::string path = fmt::format("{}/tutti-fault-seeds.{}.{}", P_tmpdir, getuid(), core);
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) {  // until the process ends
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      static_cast<void>(sched_setaffinity(0, sizeof(one), &one));
      return;
    }
    close(file);
  }
}

int main(int count, char** words) {
  const auto options = tutti::faults::read_options(count, words);
  if (!options) return 2;
  take_one_core();
  std::signal(SIGALRM, tutti::faults::too_long);
  const tutti::faults::Counts counts = tutti::faults::Runner(*options).run();
  fmt::print("{} runs, {} failed; calls: {} right, {} ended in an error, {} of these without a culprit\n", counts.runs,
             counts.failures, counts.right, counts.errors, counts.unnamed);
  return counts.failures == 0 ? 0 : 1;
}
