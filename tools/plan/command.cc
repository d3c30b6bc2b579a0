#include "tools/plan/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "plan/collective.h"
#include "plan/formats/json.h"
#include "plan/formats/text.h"
#include "plan/limits.h"
#include "plan/verify/verify.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/common/validators.h"
#include "tools/plan/export.h"
#include "tools/plan/svg.h"
#include "tutti/plan.h"

namespace tutti::tool {
namespace {

// Limit on the number of ranks of a plan that is proved or written to a file. Each of the two needs the steps of all
// ranks in memory at once. A ring all-reduce of this many ranks has 2 million steps.
constexpr std::uint32_t kMaxProvedRanks = 1024;
// If a plan has more ranks than this, only its execution through slots (staged) is proved, and not that through
// windows. The reason is that the proof for windows needs vector clocks for every plan, and their time grows with the
// number of ranks times the number of messages. (The proof for slots needs them only if channels of a rank share
// memory.)
constexpr std::uint32_t kMaxWindowRanks = 256;

struct PlanOptions {
  std::string collective;
  std::string algorithm;
  std::uint32_t ranks = 0;
  std::uint32_t root = 0;
  std::uint32_t nodes = 1;
  std::optional<std::uint32_t> rank;
  bool runs = false;
  bool quiet = false;
  std::string svg_path;
  std::string json_path;
  ExportOptions exported;
};

int fail(const Error& error) { return report("plan", error); }

// Proves the plan in place and out of place: staged and through windows for at most kMaxWindowRanks ranks,
// otherwise only staged. The counts in the report are sums over these forms of execution.
Result<VerifyReport> prove(const Plan& plan) {
  if (plan.ranks.size() <= kMaxWindowRanks) return verify_all(plan);
  VerifyReport sum;
  for (const bool in_place : {false, true}) {
    const Result<VerifyReport> report = verify(plan, {.in_place = in_place});
    if (!report.ok()) return report.error();
    sum.steps += report->steps;
    sum.messages += report->messages;
    sum.race_checks += report->race_checks;
  }
  return sum;
}

// Prints the steps of the rank that --rank names or, without --rank, those of all ranks one after the other.
void print_steps(const Generator& generator, const PlanOptions& options) {
  std::fputs(to_text(generator.shape).c_str(), stdout);
  const std::uint32_t first = options.rank.value_or(0);
  const std::uint32_t last = options.rank ? *options.rank + 1 : options.ranks;
  for (std::uint32_t rank = first; rank < last && std::ferror(stdout) == 0; ++rank) {
    std::fputs(to_text(generator.build(generator.shape, rank), rank).c_str(), stdout);
  }
}

Status draw(const Plan& plan, const std::string& path) {
  const Result<std::string> svg = to_svg(plan);
  if (!svg.ok()) return svg.error();
  return write_file(path, *svg);
}

// Writes the plan as JSON. Returns an error if the file cannot be written, or if the plan is so large that `tutti
// verify --plan` would refuse to read it.
Status write_json(const Plan& plan, const PlanOptions& options) {
  const auto refuse = [&](const std::string& reason) {
    return Error{
        .code = ErrorCode::kUnsupported,
        .message = fmt::format("{} is not written, since it could not be read back: {}", options.json_path, reason)};
  };
  if (const Status fits = check_limits(plan); !fits.ok()) return refuse(fits.error().message);
  const std::string text = to_json({.plan = plan, .name = options.algorithm});
  if (text.size() > PlanLimits::kJsonBytes) {
    return refuse(
        fmt::format("the plan is too large: {} bytes of text, at most {} are taken; take fewer ranks, or "
                    "build it with PlanBuilder",
                    text.size(), PlanLimits::kJsonBytes));
  }
  return write_file(options.json_path, text);
}

Status write_files(const Plan& plan, const PlanOptions& options) {
  if (!options.svg_path.empty()) TUTTI_TRY(draw(plan, options.svg_path));
  if (!options.json_path.empty()) TUTTI_TRY(write_json(plan, options));
  return export_plan(plan, options.exported);
}

void print_proof(const VerifyReport& report, const PlanShape& shape) {
  fmt::print(
      "proved: result, no deadlock, no race, {}, over 2 tiles and 2 calls: {} steps, {} messages, {} race checks\n",
      shape.collective.ranks <= kMaxWindowRanks ? proved_modes(shape.windows_in_place)
                                                : "staged, in place and out of place",
      report.steps, report.messages, report.race_checks);
}

// For a plan with more than kMaxProvedRanks ranks, which is not built as a whole: prints the steps of the rank that
// --rank names. Fails without --rank, or if the whole plan would be needed for a file.
int print_unproved(const Generator& generator, const PlanOptions& options) {
  if (!options.rank || !options.svg_path.empty() || !options.json_path.empty() || options.exported.wanted()) {
    fmt::print(stderr,
               "tutti plan: {} ranks are too many to print, prove, draw or write as a whole (at most {}); choose one "
               "with --rank\n",
               options.ranks, kMaxProvedRanks);
    return kExitUsage;
  }
  print_steps(generator, options);
  fmt::print("not proved: plans of more than {} ranks are not built as a whole\n", kMaxProvedRanks);
  return kExitSuccess;
}

int run_plan(const PlanOptions& options) {
  if (options.rank && *options.rank >= options.ranks) {
    return fail(wrong_option("--rank", not_a_number(std::to_string(*options.rank), 0, options.ranks - 1)));
  }
  if (const Status asked = check_export(options.exported); !asked.ok()) return fail(asked.error());
  const CollectiveKind kind = *parse_collective(options.collective);
  if (!has_root(kind) && options.root > 0) return report_usage("plan", options.collective + " has no root");
  if (options.root >= options.ranks) {
    return fail(wrong_option("--root", not_a_number(std::to_string(options.root), 0, options.ranks - 1)));
  }
  if (options.nodes == 0 || options.nodes > options.ranks) {
    return fail(wrong_option("--nodes", not_a_number(std::to_string(options.nodes), 1, options.ranks)));
  }
  const Algorithm algorithm = *parse_algorithm(options.algorithm);
  if (options.runs && !has_runs(kind, algorithm)) {
    return report_usage("plan",
                        fmt::format("{} {} has no form with runs (--runs): each of its messages carries one chunk",
                                    options.collective, options.algorithm));
  }
  const Result<Generator> generator = find_generator({.kind = kind,
                                                      .ranks = options.ranks,
                                                      .root = options.root,
                                                      .nodes = nodes_of_equal_size(options.ranks, options.nodes)},
                                                     algorithm, options.runs ? Messages::kRuns : Messages::kOneChunk);
  if (!generator.ok()) return fail(generator.error());
  if (options.ranks > kMaxProvedRanks) return print_unproved(*generator, options);
  const Plan plan = build_plan(*generator);
  // Files are written before the proof, so that an error in writing does not cost the time of the proof, and is not
  // hidden behind pages of steps.
  if (const Status written = write_files(plan, options); !written.ok()) return fail(written.error());
  const Result<VerifyReport> report = prove(plan);
  if (!options.quiet) print_steps(*generator, options);
  if (!report.ok()) return fail(report.error());
  print_proof(*report, plan.shape);
  return kExitSuccess;
}

}  // namespace

std::string_view proved_modes(bool windows_in_place) {
  return windows_in_place ? "staged and through windows, in place and out of place"
                          : "staged in place and out of place, through windows out of place (calls in place use none)";
}

std::vector<std::string> planned_collectives() {
  std::vector<std::string> names;
  for (const CollectiveKind kind : all_collectives()) {
    if (!algorithms_of(kind).empty()) names.emplace_back(to_string(kind));
  }
  return names;
}

std::string check_algorithm(const std::string& name) {
  std::vector<std::string_view> known;
  for (const Algorithm each : all_algorithms()) {
    const bool planned = std::any_of(all_collectives().begin(), all_collectives().end(), [&](CollectiveKind kind) {
      const std::vector<Algorithm> algorithms = algorithms_of(kind);
      return std::find(algorithms.begin(), algorithms.end(), each) != algorithms.end();
    });
    if (!planned) continue;
    if (name == to_string(each)) return {};
    known.push_back(to_string(each));
  }
  return not_one_of(name, known);
}

std::vector<std::uint32_t> nodes_of_equal_size(std::uint32_t ranks, std::uint32_t machines) {
  std::vector<std::uint32_t> nodes;
  if (machines <= 1) return nodes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    nodes.push_back(static_cast<std::uint32_t>(std::uint64_t{rank} * machines / ranks));
  }
  return nodes;
}

void add_plan_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plan", "Print, prove and draw the plan of a collective");
  const auto options = std::make_shared<PlanOptions>();  // shared with the callback, which outlives this function
  command->add_option("collective", options->collective, "The collective")
      ->required()
      ->check(name_in(planned_collectives()));
  command
      ->add_option("--algorithm", options->algorithm,
                   "An algorithm that has a plan for the collective, see docs/algorithms.md")
      ->required()
      ->check(check_algorithm);
  command->add_option("--ranks", options->ranks, "Number of ranks")->required()->check(number_in(1u, 1u << 24));
  command->add_option("--root", options->root, "Root rank of a rooted collective; default 0");
  command->add_option("--nodes", options->nodes, "Number of machines, each with an equal group of consecutive ranks");
  command->add_flag("--runs", options->runs,
                    "The form of the plan for short calls, in which a message carries a run of several chunks, see "
                    "docs/algorithms.md; default: the form in which each message carries one chunk");
  CLI::Option* rank = command->add_option("--rank", options->rank, "Print only the steps of this rank");
  command->add_flag("--quiet", options->quiet, "Print only the result of the proof, and no steps")->excludes(rank);
  command->add_option("--svg", options->svg_path, "Draw the plan into this file");
  command->add_option("--json", options->json_path, "Write the plan into this file, for tutti verify --plan");
  add_export_options(*command, options->exported);
  command->callback([options, &exit_code] {
    exit_code = run_plan(*options);
    if (!flush_output("plan")) exit_code = kExitFailure;
  });
}

}  // namespace tutti::tool
