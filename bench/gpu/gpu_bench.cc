// gpu_bench: compares the library on one GPU with the limits of that GPU, in one run, with times from events. See
// bench/README.md. Exit statuses: 0 success; 1 something failed or a result was wrong; 2 the command line is wrong; 3
// there is no GPU, no driver or, without --smoke, no usable device code.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/assert.h"
#include "bench/gpu/calls_part.h"
#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels_part.h"
#include "bench/gpu/report.h"
#include "cuda/driver.h"
#include "kernels/device/device_image.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tutti/version.h"

namespace tutti::bench {
namespace {

constexpr int kExitNoGpu = 3;
constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Options {
  int device = 0;
  unsigned rounds = 7;
  double cell_limit_s = 5;
  bool smoke = false;
  bool corrupt = false;
  std::string markdown_path;
  std::string json_path;
};

Row head_of(const Gpu& gpu, const Options& options) {
  Row head = {{"date", tool::utc_now()},
              {"version", std::string(version())},
              {"GPU", gpu.name()},
              {"multiprocessors", gpu.multiprocessors()},
              {"driver", cuda::version_text(gpu.driver().version())},
              {"rounds", options.rounds}};
  if (options.smoke) head["smoke"] = "tiny sizes, to check that everything runs; the times are meaningless";
  return head;
}

Status write(const Options& options, const Report& report) {
  if (!options.markdown_path.empty()) TUTTI_TRY(tool::write_file(options.markdown_path, to_markdown(report)));
  if (!options.json_path.empty()) TUTTI_TRY(tool::write_file(options.json_path, to_json(report)));
  return {};
}

// Makes all measurements. Writes the first part of the report as soon as it is known, so that it is not lost if a later
// part does not end.
Result<Report> measure(Gpu& gpu, const Options& options) {
  Report report;
  report.head = head_of(gpu, options);
  const Rounds rounds{.rounds = options.rounds, .passes = 1, .limit_s = options.cell_limit_s};
  const std::vector<std::size_t> kernel_sizes =
      options.smoke ? std::vector<std::size_t>{64 << 10} : std::vector<std::size_t>{64 * kMiB, 256 * kMiB};
  Result<KernelsResult> kernels = measure_kernels(
      gpu, {.sizes = kernel_sizes, .rounds = rounds, .smoke = options.smoke, .corrupt = options.corrupt});
  if (!kernels) return kernels.error();
  report.sections = kernels->sections;
  report.wrong = kernels->wrong;
  TUTTI_TRY(write(options, report));
  CallsOptions calls{.ranks = {2, 4, 8},
                     .sizes = {8, 1 << 10, 64 << 10, kMiB, 64 * kMiB, 256 * kMiB},
                     .gather_sizes = {kMiB, 16 * kMiB, 256 * kMiB},
                     .rounds = rounds,
                     .copies = kernels->copies,
                     .corrupt = options.corrupt};
  if (options.smoke) {
    calls.ranks = {2, 4};
    calls.sizes = {8, 1 << 10, 64 << 10};
    calls.gather_sizes = {64 << 10};
  }
  Result<CallsResult> called = measure_calls(gpu, calls);
  if (!called) return called.error();
  report.sections.insert(report.sections.end(), called->sections.begin(), called->sections.end());
  report.wrong += called->wrong;
  return report;
}

int failed(const Error& error, int status) {
  fmt::print(stderr, "gpu_bench: {}\n", to_string(error));
  return status;
}

int run(const Options& options) {
  Result<std::unique_ptr<Gpu>> gpu = Gpu::open(options.device, kernels::device_image());
  if (!gpu) return failed(gpu.error(), gpu.error().code == ErrorCode::kUnsupported ? kExitNoGpu : tool::kExitFailure);
  if (!options.smoke) {
    const auto kernel = (*gpu)->kernel("tutti_empty");
    if (!kernel) return failed(kernel.error(), kExitNoGpu);
  }
  const Result<Report> report = measure(**gpu, options);
  if (!report) return failed(report.error(), tool::kExitFailure);
  fmt::print("{}", to_markdown(*report));
  if (const Status written = write(options, *report); !written) return failed(written.error(), tool::kExitFailure);
  if (report->wrong > 0) fmt::print(stderr, "gpu_bench: {} results are WRONG\n", report->wrong);
  return report->wrong == 0 ? tool::kExitSuccess : tool::kExitFailure;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Compare Tutti on one GPU with the limits of that GPU.", "gpu_bench");
  app.footer("Exit status: 0; 1 something failed or a result was wrong; 2 the command line; 3 no GPU or device code.");
  Options options;
  app.add_option("--device", options.device, "The GPU's number")->check(CLI::Range(0, 1023))->capture_default_str();
  app.add_option("--rounds", options.rounds, "Rounds of every measurement, after a warm-up; the median counts")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  app.add_option("--cell-limit-s", options.cell_limit_s,
                 "Start no further round of a measurement after so many seconds")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  app.add_option("--markdown", options.markdown_path, "Also write the tables to this file");
  app.add_option("--json", options.json_path, "Write every sample to this file");
  app.add_flag("--smoke", options.smoke, "Tiny sizes, to check that everything runs; kernels may be missing");
  app.add_flag("--corrupt", options.corrupt, "Change every result, to test that the checks notice it")->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    fmt::print(stderr, "gpu_bench: {}\nSee gpu_bench --help.\n", error.what());
    return tool::kExitUsage;
  }
  return run(options);
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  try {
    return tutti::bench::parse_and_run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_bench: {}\n", error.what());
    return tutti::tool::kExitFailure;
  }
}
