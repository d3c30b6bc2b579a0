#include "tools/verify_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include "algorithms/algorithms.h"
#include "plan/mutate.h"
#include "plan/verify.h"
#include "tools/exit_status.h"
#include "tools/plan_command.h"
#include "tutti/plan.h"

namespace tutti::tool {
namespace {

constexpr std::uint32_t kMaxRanks = 2048;  // of one plan; a ring of so many has 8 million steps
constexpr std::uint32_t kMutatedRanks[] = {2, 3, 4, 5, 8};
constexpr std::uint32_t kMostMutatedRanks = 12;  // with --mutations: every rank count up to here
constexpr std::size_t kShownMisses = 10;

struct VerifyCommand {
  std::string ranks = "2..64";
  std::string algorithm;
  bool more_mutations = false;
  std::string plan_path;
};

// A line that is drawn over and over on a terminal; nothing where standard error is none.
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
  std::uint64_t plans = 0;
  std::uint64_t failed = 0;
  std::uint64_t skipped = 0;
  VerifyReport counts;
  MutationCount mutations;
};

double work_of(std::uint32_t ranks) { return static_cast<double>(ranks) * ranks; }

void prove_range(Algorithm algorithm, RankRange range, ProgressBar& bar, Outcome& outcome) {
  for (std::uint32_t ranks = range.first; ranks <= range.last; ++ranks) {
    bar.advance(work_of(ranks), fmt::format("{}, {} ranks", to_string(algorithm), ranks));
    const Result<Generator> generator = find_generator({.ranks = ranks}, algorithm);
    if (!generator.ok()) {
      if (outcome.skipped++ == 0) {
        bar.clear();
        fmt::print("skipped: {}\n", generator.error().message);
      }
      continue;
    }
    const Result<VerifyReport> report = verify_all(build_plan(*generator));
    ++outcome.plans;
    if (!report.ok()) {
      ++outcome.failed;
      bar.clear();
      fmt::print("NOT proved: {}, {} ranks: {}\n", to_string(algorithm), ranks, to_string(report.error()));
      continue;
    }
    outcome.counts.steps += report->steps;
    outcome.counts.messages += report->messages;
    outcome.counts.race_checks += report->race_checks;
  }
}

void count_mutants(Algorithm algorithm, const VerifyCommand& command, ProgressBar& bar, Outcome& outcome) {
  std::vector<std::uint32_t> counts(std::begin(kMutatedRanks), std::end(kMutatedRanks));
  if (command.more_mutations) {
    counts.clear();
    for (std::uint32_t ranks = 1; ranks <= kMostMutatedRanks; ++ranks) counts.push_back(ranks);
  }
  for (const std::uint32_t ranks : counts) {
    bar.advance(0, fmt::format("{}, mutations", to_string(algorithm)));
    const Plan plan = build_plan(*find_generator({.ranks = ranks}, algorithm));
    if (!verify_all(plan).ok()) {
      ++outcome.failed;
      fmt::print("NOT proved: {}, {} ranks, so its mutations say nothing\n", to_string(algorithm), ranks);
      continue;
    }
    MutationCount count = count_mutations(plan);
    for (std::string& name : count.missed_names)
      name = fmt::format("{}, {} ranks: {}", to_string(algorithm), ranks, name);
    outcome.mutations += count;
  }
}

int report_outcome(const Outcome& outcome, std::size_t algorithms, RankRange range, double seconds) {
  const MutationCount& mutations = outcome.mutations;
  for (std::size_t i = 0; i < mutations.missed_names.size() && i < kShownMisses; ++i) {
    fmt::print("missed: {}\n", mutations.missed_names[i]);
  }
  const bool good = outcome.failed == 0 && mutations.missed == 0 && outcome.plans > 0;
  if (outcome.failed > 0) fmt::print("FAILED: {} of {} plans were not proved\n", outcome.failed, outcome.plans);
  fmt::print(
      "{} {} plans ({} {}, ranks {}..{}): {} steps, {} messages, {} race checks in {:.1f} s; "
      "mutations: tried {}, refused {}, harmless {}, missed {}\n",
      good ? "proved" : "FAILED; proved", outcome.plans - outcome.failed, algorithms,
      algorithms == 1 ? "algorithm" : "algorithms", range.first, range.last, outcome.counts.steps,
      outcome.counts.messages, outcome.counts.race_checks, seconds, mutations.tried, mutations.refused,
      mutations.harmless, mutations.missed);
  return good ? kExitSuccess : kExitFailure;
}

int run_verify(const VerifyCommand& command) {
  const RankRange range = *parse_rank_range(command.ranks);
  std::vector<Algorithm> algorithms = algorithms_of(CollectiveKind::kAllReduce);
  if (!command.algorithm.empty()) algorithms = {*parse_algorithm(command.algorithm)};
  double work = 0;
  for (std::uint32_t ranks = range.first; ranks <= range.last; ++ranks) work += work_of(ranks);
  ProgressBar bar(work * static_cast<double>(algorithms.size()));
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  for (const Algorithm algorithm : algorithms) {
    prove_range(algorithm, range, bar, outcome);
    count_mutants(algorithm, command, bar, outcome);
  }
  bar.clear();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return report_outcome(outcome, algorithms.size(), range, seconds.count());
}

// A plan of the user's own, from a file.
int verify_file(const std::string& path) {
  const Result<UserPlan> plan = UserPlan::load(path);
  if (!plan.ok()) {
    fmt::print(stderr, "tutti verify: {}\n", to_string(plan.error()));
    return kExitFailure;
  }
  const PlanDescription& what = plan->description();
  const PlanProof& proof = plan->proof();
  fmt::print(
      "proved {}{}{} of {} {}: result, no deadlock, no race, staged and through windows, in place and out of place, "
      "over 2 tiles and 2 calls: {} steps, {} messages, {} race checks; digest {:08x}\n",
      what.name, what.name.empty() ? "" : ", ", to_string(what.collective), what.ranks,
      what.ranks == 1 ? "rank" : "ranks", proof.steps, proof.messages, proof.race_checks, plan->digest());
  return kExitSuccess;
}

bool parse_number(std::string_view text, std::uint32_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string check_rank_range(const std::string& text) {
  const std::optional<RankRange> range = parse_rank_range(text);
  if (!range) return fmt::format("{} is not a number of ranks (\"8\") or a range (\"2..64\")", text);
  if (range->last > kMaxRanks)
    return fmt::format("{} ranks are too many to write out; at most {}", range->last, kMaxRanks);
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
      app.add_subcommand("verify", "Prove the plans of every algorithm, and test the verifier by mutations");
  const auto options = std::make_shared<VerifyCommand>();  // shared with the callback, which outlives this function
  CLI::Option* ranks = command->add_option("--ranks", options->ranks, "Rank counts: A..B or A")
                           ->capture_default_str()
                           ->check(check_rank_range);
  CLI::Option* algorithm =
      command->add_option("--algorithm", options->algorithm, "Only this one; default all")->check(check_algorithm);
  CLI::Option* mutations = command->add_flag(
      "--mutations", options->more_mutations,
      fmt::format("Mutate the plans of every rank count up to {} (some seconds) instead of a few", kMostMutatedRanks));
  command->add_option("--plan", options->plan_path, "Prove the plan in this file instead, see docs/plan-json.md")
      ->excludes(ranks, algorithm, mutations);
  command->callback([options, &exit_code] {
    exit_code = options->plan_path.empty() ? run_verify(*options) : verify_file(options->plan_path);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      std::fputs("tutti verify: writing to standard output failed\n", stderr);
      exit_code = kExitFailure;
    }
  });
}

}  // namespace tutti::tool
