#include "tools/plan/verify_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "algorithms/algorithms.h"
#include "base/byte_text.h"
#include "base/printable.h"
#include "plan/collective.h"
#include "plan/limits.h"
#include "plan/verify/mutate.h"
#include "plan/verify/verify.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/common/validators.h"
#include "tools/plan/command.h"
#include "topology/memory.h"
#include "tutti/plan.h"

namespace tutti::tool {
namespace {

// Largest number of ranks that --ranks accepts. A ring all-reduce of this many ranks has 34 million steps.
constexpr std::uint32_t kMaxRanks = 4096;
// Plans with more than kFullRanks ranks are checked less: only execution without windows and in place, with one root,
// one tile and one call. Their freedom from races is not checked if only vector clocks can prove it and these would be
// too large.
constexpr std::uint32_t kFullRanks = 256;
// limit on the steps of a plan with more than kFullRanks ranks, all its ranks together
constexpr std::uint64_t kMostSteps = 70'000'000;
// Memory that a run needs for each step of its largest plan. Measured: with a plan of kMostSteps steps, it uses up
// to 5.6 GB.
constexpr std::uint64_t kStepBytes = 80;
// Limit for plans with more than kFullRanks ranks whose freedom from races only vector clocks can prove: how many
// entries of vector clocks are joined in all. 10^9 of them take about a second.
constexpr std::uint64_t kMostClockWords = std::uint64_t{1} << 32;
// Without --mutations, the plans for these numbers of ranks are mutated.
constexpr std::uint32_t kMutatedRanks[] = {2, 3, 4, 5, 8};
// Plans with at most this many ranks are mutated for each root of roots_of() and each distribution of
// machines_of(). Plans with more ranks are mutated only for root 0 on one machine.
constexpr std::uint32_t kMutatedVariants = 4;
// with --mutations, the plans of 1 to this many ranks are mutated
constexpr std::uint32_t kMostMutatedRanks = 12;
// Limit on the undetected mutations that are printed.
constexpr std::size_t kShownMisses = 10;

struct VerifyCommand {
  std::string ranks = "2..64";
  std::string collective;  // empty: all collectives
  std::string algorithm;
  bool more_mutations = false;
  std::string plan_path;
};

// A progress bar on one line of standard error. Prints nothing if standard error is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(double total) : total_(total), shown_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(double work, const std::string& what) {
    done_ += work;
    const int percent = static_cast<int>(100 * done_ / total_);
    if (!shown_ || percent == percent_) return;
    percent_ = percent;
    const auto filled = static_cast<std::size_t>(percent * kWidth / 100);
    fmt::print(stderr, "\r[{:<{}}] {:3}% {:<28}", std::string(filled, '#'), kWidth, percent, what);
    std::fflush(stderr);
  }
  void clear() {
    if (shown_ && percent_ >= 0) fmt::print(stderr, "\r{:{}}\r", "", kWidth + 40);
    percent_ = -1;
  }

 private:
  static constexpr int kWidth = 40;
  double total_;
  double done_ = 0;
  int percent_ = -1;
  bool shown_;
};

struct Outcome {
  // Available memory in bytes. It is measured only once, at the start: memory that was freed later stays with this
  // process, so a later measurement would count it as used.
  std::uint64_t memory_bytes = 0;
  // The kind of limit from which memory_bytes comes, for messages.
  std::string_view memory_limit;
  // number of plans for which a proof was tried; `failed` is the number of those that were not proved
  std::uint64_t plans = 0;
  std::uint64_t failed = 0;
  // number of plans that were not mutated because they were not proved
  std::uint64_t not_mutated = 0;
  // Number of cases that were not tried: no plan exists, or the plan is too large. If no plan exists, the cases that
  // for_each_plan() would try next for the same number of ranks are left out as well, but not counted. A case for which
  // a proof and mutations were intended counts twice.
  std::uint64_t skipped = 0;
  // number of proved plans with more than kFullRanks ranks, which are checked less
  std::uint64_t sampled = 0;
  // number of proved plans that were not checked for races
  std::uint64_t races_open = 0;
  VerifyReport counts;
  MutationCount mutations;
};

// Estimated time of the proofs of one Subject for one number of ranks, in arbitrary units, for the progress bar.
double work_of(std::uint32_t ranks) { return static_cast<double>(ranks) * ranks; }

// One algorithm of one collective, with its plans of one form (Messages in algorithms.h).
struct Subject {
  CollectiveKind kind;
  Algorithm algorithm;
  Messages messages = Messages::kOneChunk;

  std::string name() const {
    return fmt::format("{} {}{}", to_string(kind), to_string(algorithm),
                       messages == Messages::kRuns ? " with runs" : "");
  }
};

std::vector<Subject> subjects_of(const VerifyCommand& command) {
  std::vector<Subject> subjects;
  for (const CollectiveKind kind : all_collectives()) {
    if (!command.collective.empty() && command.collective != to_string(kind)) continue;
    for (const Algorithm algorithm : algorithms_of(kind)) {
      if (!command.algorithm.empty() && command.algorithm != to_string(algorithm)) continue;
      subjects.push_back({.kind = kind, .algorithm = algorithm});
      if (has_runs(kind, algorithm)) {
        subjects.push_back({.kind = kind, .algorithm = algorithm, .messages = Messages::kRuns});
      }
    }
  }
  return subjects;
}

// The roots to try: rank 0, one in the middle, and the last rank, each once. Only the one in the middle if there
// are more than kFullRanks ranks. Only 0 if the collective has no root.
std::vector<std::uint32_t> roots_of(CollectiveKind kind, std::uint32_t ranks) {
  if (!has_root(kind)) return {0};
  if (ranks > kFullRanks) return {ranks / 2};
  std::vector<std::uint32_t> roots{0, ranks / 2, ranks - 1};
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  return roots;
}

// The distributions of ranks over machines to try, each as Collective::nodes: all ranks on one machine; if there
// are at least 2 ranks, half of them on each of two machines (if their number is odd, one more on the first); and if
// there are at least 3 ranks, two thirds of them, rounded up, on the first of two machines.
std::vector<std::vector<std::uint32_t>> machines_of(std::uint32_t ranks) {
  std::vector<std::vector<std::uint32_t>> shapes{{}};
  if (ranks < 2) return shapes;
  shapes.push_back(nodes_of_equal_size(ranks, 2));
  std::vector<std::uint32_t> uneven(ranks, 1);
  std::fill_n(uneven.begin(), (2 * ranks + 2) / 3, 0);
  if (uneven.back() == 1) shapes.push_back(std::move(uneven));
  return shapes;
}

std::string describe(const Subject& subject, const Collective& collective) {
  std::string text = fmt::format("{}, {} ranks", subject.name(), collective.ranks);
  if (has_root(subject.kind)) text += fmt::format(", root {}", collective.root);
  if (!collective.nodes.empty()) {
    const auto first = std::count(collective.nodes.begin(), collective.nodes.end(), collective.nodes.front());
    text += fmt::format(", the first {} on a machine of their own", first);
  }
  return text;
}

// Estimates the number of steps of all ranks together, as the steps of rank 0 times the number of ranks.
std::uint64_t steps_of(const Generator& generator) {
  std::uint64_t steps = 0;
  for (const Channel& channel : generator.build(generator.shape, 0).channels) steps += channel.steps.size();
  return steps * generator.shape.collective.ranks;
}

std::uint64_t channels_of(const Plan& plan) {
  std::uint64_t channels = 0;
  for (const RankPlan& rank : plan.ranks) channels += rank.channels.size();
  return channels;
}

// Proves a plan. For at most kFullRanks ranks, all four forms of execution are proved (staged or through windows,
// each in place or out of place). For more ranks that would take hours, so only staged execution in place is proved:
// its result, and that it does not deadlock. Its freedom from races is proved if the order of steps within each rank
// is sufficient for that, or otherwise by vector clocks if they are not too large. VerifyReport::race_free is true if
// it was proved.
Result<VerifyReport> prove_or_sample(const Plan& plan) {
  if (plan.ranks.size() <= kFullRanks) return verify_all(plan);
  const auto sampled = verify(plan, {.in_place = true, .own_order_only = true, .tiles = 1, .calls = 1});
  if (!sampled.ok() || sampled->race_free) return sampled;
  const std::uint64_t joins = sampled->steps + 2 * sampled->messages;
  if (joins * channels_of(plan) > kMostClockWords) return sampled;
  auto clocked = verify(plan, {.in_place = true, .tiles = 1, .calls = 1});
  return !clocked.ok() && clocked.error().code == ErrorCode::kUnsupported ? sampled : clocked;
}

// Returns the reason why a plan is too large to be built, as a text. Returns an empty text if it is not.
std::string too_large(const Generator& generator, const Outcome& outcome) {
  const std::uint64_t steps = steps_of(generator);
  if (steps > kMostSteps) return fmt::format("has about {} steps, more than {}", steps, kMostSteps);
  const std::uint64_t needed = steps * kStepBytes;
  if (needed <= outcome.memory_bytes) return {};
  return fmt::format("has about {} steps, which need {} of memory, and {} are available ({})", steps,
                     text_of_bytes(needed), text_of_bytes(outcome.memory_bytes), outcome.memory_limit);
}

// Calls `visit` with every different plan of an algorithm for this number of ranks: for each root of roots_of()
// and, if the plan depends on the machines, for each distribution of machines_of(). A case without a plan is
// counted in outcome.skipped, its error message is printed if it is the first skipped case, and the function returns
// without the remaining cases. A plan for more than kFullRanks ranks that is too large is also counted in
// outcome.skipped. The reason is always printed, and the function continues with the next case.
void for_each_plan(const Subject& subject, std::uint32_t ranks, ProgressBar& bar, Outcome& outcome,
                   const std::function<void(const Plan& plan, const std::string& name)>& visit) {
  for (const std::uint32_t root : roots_of(subject.kind, ranks)) {
    Plan on_one;
    for (const std::vector<std::uint32_t>& nodes : machines_of(ranks)) {
      const Collective collective{.kind = subject.kind, .ranks = ranks, .root = root, .nodes = nodes};
      const Result<Generator> generator = find_generator(collective, subject.algorithm, subject.messages);
      if (!generator.ok()) {
        if (outcome.skipped++ > 0) return;
        bar.clear();
        fmt::print("skipped: {}\n", generator.error().message);
        return;
      }
      // With few ranks, both forms of a plan are the same, and this one was already visited in the form kOneChunk.
      if (subject.messages == Messages::kRuns && generator->shape.longest_run == 1) return;
      if (const std::string why = ranks > kFullRanks ? too_large(*generator, outcome) : ""; !why.empty()) {
        ++outcome.skipped;
        bar.clear();
        fmt::print("left out: {} {}\n", describe(subject, collective), why);
        continue;
      }
      Plan plan = build_plan(*generator);
      if (!nodes.empty() && plan.ranks == on_one.ranks) break;  // the plan does not depend on machines
      visit(plan, describe(subject, collective));
      if (nodes.empty()) on_one = std::move(plan);
    }
  }
}

void prove_range(const Subject& subject, RankRange range, ProgressBar& bar, Outcome& outcome) {
  for (std::uint32_t ranks = range.first; ranks <= range.last; ++ranks) {
    bar.advance(work_of(ranks), fmt::format("{}, {} ranks", subject.name(), ranks));
    for_each_plan(subject, ranks, bar, outcome, [&](const Plan& plan, const std::string& name) {
      const Result<VerifyReport> report = prove_or_sample(plan);
      ++outcome.plans;
      if (!report.ok()) {
        ++outcome.failed;
        bar.clear();
        fmt::print("NOT proved: {}: {}\n", name, to_string(report.error()));
        return;
      }
      if (ranks > kFullRanks) ++outcome.sampled;
      if (!report->race_free) {
        ++outcome.races_open;
        bar.clear();
        fmt::print("races not checked: {}: the vector clocks of its order would be too large\n", name);
      }
      outcome.counts.steps += report->steps;
      outcome.counts.messages += report->messages;
      outcome.counts.race_checks += report->race_checks;
    });
  }
}

void count_mutants(const Subject& subject, const VerifyCommand& command, ProgressBar& bar, Outcome& outcome) {
  std::vector<std::uint32_t> counts(std::begin(kMutatedRanks), std::end(kMutatedRanks));
  if (command.more_mutations) {
    counts.clear();
    for (std::uint32_t ranks = 1; ranks <= kMostMutatedRanks; ++ranks) counts.push_back(ranks);
  }
  for (const std::uint32_t ranks : counts) {
    bar.advance(0, fmt::format("{}, mutations", subject.name()));
    for_each_plan(subject, ranks, bar, outcome, [&](const Plan& plan, const std::string& name) {
      if (!verify_all(plan).ok()) {
        ++outcome.not_mutated;
        fmt::print("NOT proved: {}, so its mutations are not tested\n", name);
        return;
      }
      const Collective& collective = plan.shape.collective;
      if (ranks > kMutatedVariants && (collective.root > 0 || !collective.nodes.empty())) return;
      MutationCount count = count_mutations(plan);
      for (std::string& missed : count.missed_names) missed = fmt::format("{}: {}", name, missed);
      outcome.mutations += count;
    });
  }
}

int report_outcome(const Outcome& outcome, const std::vector<Subject>& subjects, RankRange range, double seconds) {
  const MutationCount& mutations = outcome.mutations;
  for (std::size_t i = 0; i < mutations.missed_names.size() && i < kShownMisses; ++i) {
    fmt::print("missed: {}\n", mutations.missed_names[i]);
  }
  const bool good = outcome.failed == 0 && outcome.not_mutated == 0 && mutations.missed == 0 && outcome.plans > 0;
  if (outcome.failed > 0) fmt::print("FAILED: {} of {} plans were not proved\n", outcome.failed, outcome.plans);
  std::set<CollectiveKind> kinds;
  std::set<Algorithm> algorithms;
  for (const Subject& subject : subjects) {
    kinds.insert(subject.kind);
    algorithms.insert(subject.algorithm);
  }
  fmt::print(
      "{} {} plans ({} {}, {} {}, ranks {}..{}): {} steps, {} messages, {} race checks in {:.1f} s; "
      "mutations: tried {}, refused {}, harmless {}, missed {}\n",
      good ? "proved" : "FAILED; proved", outcome.plans - outcome.failed, kinds.size(),
      kinds.size() == 1 ? "collective" : "collectives", algorithms.size(),
      algorithms.size() == 1 ? "algorithm" : "algorithms", range.first, range.last, outcome.counts.steps,
      outcome.counts.messages, outcome.counts.race_checks, seconds, mutations.tried, mutations.refused,
      mutations.harmless, mutations.missed);
  if (range.last > kFullRanks) {
    fmt::print(
        "plans of more than {} ranks: result and no deadlock, staged, in place, 1 tile and 1 call; no race in "
        "{} of {}; {} left out\n",
        kFullRanks, outcome.sampled - outcome.races_open, outcome.sampled, outcome.skipped);
  }
  return good ? kExitSuccess : kExitFailure;
}

int run_verify(const VerifyCommand& command) {
  const RankRange range = *parse_rank_range(command.ranks);
  const std::vector<Subject> subjects = subjects_of(command);
  if (subjects.empty()) {
    fmt::print(stderr, "tutti verify: no plan of {} is called {}\n", command.collective, command.algorithm);
    return kExitUsage;
  }
  double work = 0;
  for (std::uint32_t ranks = range.first; ranks <= range.last; ++ranks) work += work_of(ranks);
  ProgressBar bar(work * static_cast<double>(subjects.size()));
  const AvailableMemory memory = available_memory();
  Outcome outcome;
  outcome.memory_bytes = memory.bytes();
  outcome.memory_limit = memory.limit();
  const auto start = std::chrono::steady_clock::now();
  for (const Subject& subject : subjects) {
    prove_range(subject, range, bar, outcome);
    count_mutants(subject, command, bar, outcome);
  }
  bar.clear();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return report_outcome(outcome, subjects, range, seconds.count());
}

// Proves a user's plan, which is read from a JSON file, and prints the result. Returns the exit code.
int verify_file(const std::string& path) {
  const Result<std::string> text = read_file(path, PlanLimits::kJsonBytes + 1);
  if (!text.ok()) return report("verify", text.error());
  const Result<UserPlan> plan = UserPlan::parse_json(*text);
  if (!plan.ok()) return report("verify", wrong_content(fmt::format("{}: {}", path, plan.error().message)));
  const PlanDescription& what = plan->description();
  const PlanProof& proof = plan->proof();
  fmt::print(
      "proved {}{}{} of {} {}: result, no deadlock, no race, {}, over 2 tiles and 2 calls: {} steps, {} messages, {} "
      "race checks; digest {:08x}\n",
      what.name, what.name.empty() ? "" : ", ", to_string(what.collective), what.ranks,
      what.ranks == 1 ? "rank" : "ranks", proved_modes(proof.windows_in_place), proof.steps, proof.messages,
      proof.race_checks, plan->digest());
  return kExitSuccess;
}

bool parse_number(std::string_view text, std::uint32_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string check_rank_range(const std::string& text) {
  const std::optional<RankRange> range = parse_rank_range(text);
  if (!range) return fmt::format("\"{}\" is not a number of ranks (8) or a range (2..64)", printable(text));
  if (range->last > kMaxRanks) return not_a_number(std::to_string(range->last), 1, kMaxRanks);
  return {};
}

}  // namespace

std::optional<RankRange> parse_rank_range(const std::string& text) {
  const std::size_t dots = text.find("..");
  const std::string_view whole = text;
  RankRange range;
  if (!parse_number(whole.substr(0, dots), range.first)) return std::nullopt;
  range.last = range.first;
  if (dots != std::string::npos && !parse_number(whole.substr(dots + 2), range.last)) return std::nullopt;
  if (range.first == 0 || range.last < range.first) return std::nullopt;
  return range;
}

void add_verify_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("verify", "Prove every algorithm of every collective, and test the verifier by mutations");
  const auto options = std::make_shared<VerifyCommand>();  // shared with the callback, which outlives this function
  CLI::Option* ranks = command->add_option("--ranks", options->ranks, "Rank counts to prove: A..B or A")
                           ->capture_default_str()
                           ->check(check_rank_range);
  CLI::Option* collective = command->add_option("--collective", options->collective, "Only this one; default all")
                                ->check(name_in(planned_collectives()));
  CLI::Option* algorithm =
      command->add_option("--algorithm", options->algorithm, "Only this one; default all")->check(check_algorithm);
  CLI::Option* mutations = command->add_flag(
      "--mutations", options->more_mutations,
      fmt::format("Mutate the plans of every rank count up to {} (some seconds) instead of {}; --ranks has no "
                  "effect on this",
                  kMostMutatedRanks, fmt::join(kMutatedRanks, ", ")));
  command->add_option("--plan", options->plan_path, "Prove the plan in this file instead, see docs/plan-json.md")
      ->excludes(ranks, collective, algorithm, mutations);
  command->callback([options, &exit_code] {
    exit_code = options->plan_path.empty() ? run_verify(*options) : verify_file(options->plan_path);
    if (!flush_output("verify")) exit_code = kExitFailure;
  });
}

}  // namespace tutti::tool
