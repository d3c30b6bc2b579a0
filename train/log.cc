#include "train/log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "tools/common/messages.h"
#include "tutti/version.h"

namespace tutti::train {
namespace {

constexpr std::chrono::milliseconds kBarEvery{200};
constexpr int kBarWidth = 24;

// The value as JSON: "null" for infinity and NaN, because JSON cannot represent them.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }

// Removes an incomplete last line, which a run leaves if it is killed while it writes.
void cut_torn_line(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::int64_t end = file.tellg();
  const std::int64_t all = end;
  for (; end > 0; --end) {
    file.seekg(end - 1);
    if (file.get() == '\n') break;
  }
  if (end < all) std::filesystem::resize_file(path, static_cast<std::uintmax_t>(end), error);
}

}  // namespace

std::string utc_time() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

Log::Log(const TrainOptions& options, bool append) : options_(options) {
  if (options.json.empty()) return;
  if (append) cut_torn_line(options.json);
  file_.open(options.json, append ? std::ios::app : std::ios::trunc);
  if (!file_) {
    throw Failure(tool::cannot_write(options.json, errno));
  }
}

void Log::write(const std::string& line) {
  if (!file_.is_open() || !file_) return;
  file_ << line << '\n' << std::flush;
  if (!file_) note(fmt::format("{} can no longer be written: the log ends here, training goes on", options_.json));
}

void Log::run(const RunFacts& facts) {
  const TrainOptions& o = options_;
  write(fmt::format(
      R"({{"record":"run","version":"{}","time":"{}","model":"{}","parameters":{},"strategy":"{}","ranks":{},)"
      R"("data":{},"tensor":{},"pipeline":{},"group":{},"batch":{},"seed":{},"optimizer":"{}","lr":{},)"
      R"("precision":"{}","threads":{},"overlap":{},"bucket_kb":{},"algorithm":"{}","as_ranks":{}}})",
      version(), facts.time, o.model.name, facts.parameters, name_of(o.strategy), o.ranks, facts.data_ranks, o.tensor,
      o.pipeline, o.group, o.batch, o.seed, name_of(o.optimizer), number(o.lr), name_of(o.precision), o.threads,
      o.overlap, o.bucket_kb, o.algorithm, o.as_ranks));
  if (o.quiet) return;
  note(fmt::format("{}: {} parameters, {} on {} rank{} ({} data x {} pipeline x {} tensor), batch {}, {} lr {}",
                   o.model.name, facts.parameters, name_of(o.strategy), o.ranks, o.ranks == 1 ? "" : "s",
                   facts.data_ranks, o.pipeline, o.tensor, o.batch, name_of(o.optimizer), number(o.lr)));
}

void Log::step(std::int64_t step, double epoch, double lr, const StepReport& report) {
  std::string more;
  if (options_.clip > 0 || options_.precision == Precision::kFloat16) {  // otherwise norm and scale have no effect
    more = fmt::format(R"(,"grad_norm":{},"scale":{})", number(report.grad_norm), number(report.scale));
  }
  write(fmt::format(R"({{"record":"step","step":{},"epoch":{:.4f},"loss":{},"lr":{},"samples":{},"load_s":{:.6f},)"
                    R"("compute_s":{:.6f},"exposed_s":{:.6f},"step_s":{:.6f},"skipped":{}{}}})",
                    step, epoch, number(report.loss), number(lr), report.samples, report.load_s, report.compute_s,
                    report.exposed_s, report.step_s, report.skipped, more));
}

void Log::test(std::int64_t step, double epoch, const TestReport& report) {
  write(fmt::format(R"({{"record":"epoch","step":{},"epoch":{:.4f},"test_loss":{},"test_accuracy":{}}})", step, epoch,
                    number(report.loss), number(report.accuracy)));
  if (!options_.quiet) {
    note(fmt::format("epoch {:.2f}, step {}: test loss {:.4f}, accuracy {:.2f} %", epoch, step, report.loss,
                     100 * report.accuracy));
  }
}

void Log::note(const std::string& text) {
  fmt::print(stderr, "{}{}\n", bar_shown_ ? "\x1b[1A\x1b[2K" : "", text);
  bar_shown_ = false;
}

// Prints nothing with --quiet. On a terminal, progress is one line that is replaced again and again; otherwise a line
// after the first step and after each tenth of the steps.
void Log::progress(std::int64_t step, std::int64_t steps, double epoch, const StepReport& report) {
  if (options_.quiet) return;
  const auto now = std::chrono::steady_clock::now();
  const std::int64_t tenth = 10 * step / steps;
  const bool due = options_.terminal ? now - last_progress_ >= kBarEvery || step == steps : tenth != last_tenth_;
  if (!due) return;
  last_progress_ = now;
  last_tenth_ = tenth;
  const auto ms = [&](double part) { return 1000 * part; };
  const auto done = static_cast<std::size_t>(kBarWidth * step / steps);
  const std::string line = fmt::format(
      "[{:<{}}] {}/{}  epoch {:.2f}  loss {:.4f}  {:.1f} ms (load {:.1f}, compute {:.1f}, exposed {:.1f})  {:.0f}/s",
      std::string(done, '='), kBarWidth, step, steps, epoch, report.loss, ms(report.step_s), ms(report.load_s),
      ms(report.compute_s), ms(report.exposed_s), static_cast<double>(report.samples) / report.step_s);
  note(line);
  bar_shown_ = options_.terminal;
}

void Log::result(const RunResult& result) {
  write(fmt::format(R"({{"record":"result","steps":{},"epochs":{:.4f},"loss":{},"test_loss":{},"test_accuracy":{},)"
                    R"("seconds":{:.4f},"samples_per_s":{:.2f},"peak_bytes":{},"state_bytes":{},"sent_bytes":{}}})",
                    result.steps, result.epochs, number(result.loss), number(result.test.loss),
                    number(result.test.accuracy), result.seconds, result.samples_per_s, result.peak_bytes,
                    result.state_bytes, result.sent_bytes));
  if (options_.quiet) return;
  note(fmt::format(
      "{} steps in {:.1f} s, {:.0f} samples/s; loss {:.4f}, test accuracy {:.2f} %; peak {:.1f} MB of tensors, "
      "of which parameters, gradients and optimizer state are {:.1f} MB",
      result.steps, result.seconds, result.samples_per_s, result.loss, 100 * result.test.accuracy,
      static_cast<double>(result.peak_bytes) / 1e6, static_cast<double>(result.state_bytes) / 1e6));
}

void Log::finish() {
  if (!file_.is_open()) return;
  const bool whole = file_.good();
  file_.close();
  if (whole && !file_.fail()) return;
  throw Failure(ErrorCode::kSystem, fmt::format("{} lacks records: the disk is full, or the file was removed. Free "
                                                "some space or give another file with --json. The "
                                                "training itself succeeded",
                                                options_.json));
}

}  // namespace tutti::train
