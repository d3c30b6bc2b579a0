#include "train/plot/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace tutti::train {
namespace {

using nlohmann::json;

// A loss above it means that the training has diverged; it is drawn as a gap.
constexpr double kMostLoss = 1e30;
constexpr std::uint64_t kMostWhole = ~0ULL;                  // upper bound of fields that may have any whole number
constexpr std::uint64_t kMostSteps = 1'000'000'000'000'000;  // so that a double represents it exactly
constexpr std::size_t kMaxQuotedBytes = 24;                  // bytes of a line that are quoted in a message

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

// Makes untrusted text safe for an error message: control characters are replaced, and long text is cut.
std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, kMaxQuotedBytes)) result += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > kMaxQuotedBytes ? result + "..." : result;
}

// The file name without folder and extension. Bytes that are not valid UTF-8 are replaced, because they would make
// the drawing invalid.
std::string stem_of(const std::string& path) {
  std::string stem = std::filesystem::path(path).stem().string();
  std::string quoted = "\"";
  for (const char c : stem) quoted += c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  if (json::accept(quoted + '"')) return stem;
  for (char& c : stem) c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
  return stem;
}

// Reads the fields of one record. It remembers the first error of all fields that were read.
class Fields {
 public:
  explicit Fields(const json& record) : record_(record) {}

  // A whole number from `least` to `most`; `missing` if the record lacks the field.
  std::uint64_t whole(const char* name, std::uint64_t least, std::uint64_t most, std::uint64_t missing) {
    const json* field = find(name);
    if (field == nullptr) return missing;
    const bool good = field->is_number_unsigned();
    const std::uint64_t number = good ? field->get<std::uint64_t>() : 0;
    if (good && number >= least && number <= most) return number;
    fail(most == kMostWhole ? fmt::format("\"{}\" should be a whole number of at least {}", name, least)
                            : fmt::format("\"{}\" should be a whole number of {} to {}", name, least, most));
    return missing;
  }
  std::uint64_t required(const char* name, std::uint64_t least, std::uint64_t most) {
    if (find(name) == nullptr) fail(fmt::format("\"{}\" is missing", name));
    return whole(name, least, most, least);
  }
  // Any number; kNoValue if the record lacks the field.
  double number(const char* name) {
    const json* field = find(name);
    if (field == nullptr) return kNoValue;
    if (field->is_number()) return field->get<double>();
    fail(fmt::format("\"{}\" should be a number or null", name));
    return kNoValue;
  }
  // For seconds, rates and fractions: a number from 0 to `most`, or kNoValue.
  double amount(const char* name, double most) {
    const double value = number(name);
    if (value < 0 || value > most) fail(fmt::format("\"{}\" should be a number of 0 to {:g}", name, most));
    return value;
  }
  // A string; empty if the record lacks the field.
  std::string word(const char* name) {
    const json* field = find(name);
    if (field == nullptr) return {};
    if (field->is_string()) return field->get<std::string>();
    fail(fmt::format("\"{}\" should be a string", name));
    return {};
  }

  const std::string& fault() const { return fault_; }

 private:
  const json* find(const char* name) const {
    const auto field = record_.find(name);
    return field == record_.end() || field->is_null() ? nullptr : &*field;
  }
  void fail(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault) + ": fix or remove the line";
  }

  const json& record_;
  std::string fault_;
};

void take_run(Fields& fields, RunLog& log) {
  log.model = fields.word("model");
  log.strategy = fields.word("strategy");
  log.optimizer = fields.word("optimizer");
  log.precision = fields.word("precision");
  log.parameters = fields.whole("parameters", 0, kMostWhole, 0);
  log.ranks = static_cast<std::uint32_t>(fields.required("ranks", 1, kMostLogRanks));
  log.tensor = fields.whole("tensor", 1, kMostLogRanks, 0);
  log.pipeline = fields.whole("pipeline", 1, kMostLogRanks, 0);
  log.batch = fields.whole("batch", 0, kMostWhole, 0);
  log.threads = fields.whole("threads", 0, kMostWhole, 0);
  log.seed = fields.whole("seed", 0, kMostWhole, 0);
  log.lr = fields.number("lr");
}

void take_step(Fields& fields, RunLog& log) {
  constexpr double kMostSeconds = 1e9;
  RunLog::Step step;
  step.step = fields.required("step", 0, kMostSteps);
  step.loss = fields.number("loss");
  if (!(std::abs(step.loss) <= kMostLoss)) step.loss = kNoValue;
  step.load_s = fields.amount("load_s", kMostSeconds);
  step.compute_s = fields.amount("compute_s", kMostSeconds);
  step.exposed_s = fields.amount("exposed_s", kMostSeconds);
  step.step_s = fields.amount("step_s", kMostSeconds);
  log.steps.push_back(step);
}

void take_epoch(Fields& fields, RunLog& log) {
  RunLog::Epoch epoch;
  epoch.step = fields.required("step", 0, kMostSteps);
  epoch.test_accuracy = fields.amount("test_accuracy", 1);
  log.epochs.push_back(epoch);
}

// Reads one log, line by line. For each line, take() returns an error message, or an empty string.
class LogReader {
 public:
  explicit LogReader(const std::string& path) { log_.name = stem_of(path); }

  std::string take(const json& record) {
    const auto kind = record.find("record");
    if (kind == record.end() || !kind->is_string())
      return "there is no \"record\" field with the type of the record: fix or remove the line";
    Fields fields(record);
    if (*kind == "run") {
      if (has_run_) return {};  // a resumed run appends another one to the same file
      has_run_ = true;
      take_run(fields, log_);
    } else if (*kind == "step") {
      take_step(fields, log_);
    } else if (*kind == "epoch") {
      take_epoch(fields, log_);
    } else if (*kind == "result") {
      constexpr double kMostRate = 1e15;
      log_.samples_per_s = fields.amount("samples_per_s", kMostRate);
    }
    return fields.fault();
  }

  bool has_run() const { return has_run_; }
  RunLog log() && { return std::move(log_); }

 private:
  RunLog log_;
  bool has_run_ = false;
};

}  // namespace

Result<RunLog> parse_log(const std::string& name, const std::string& text) {
  constexpr std::string_view kAdvice = "name a log that `tutti train MODEL --json FILE` wrote";
  constexpr std::string_view kBlanks = " \t\r";
  if (text.empty()) return invalid(fmt::format("{} is empty: {}", name, kAdvice));
  if (text.size() > kMostLogBytes) {
    return invalid(
        fmt::format("{} is bigger than {} MB: leave out some of its step records", name, kMostLogBytes >> 20));
  }
  LogReader reader(name);
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const bool last = end == std::string::npos;
    std::string_view line = std::string_view(text).substr(begin, last ? end : end - begin);
    begin = last ? text.size() : end + 1;
    ++number;
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) continue;
    const json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_discarded() && last && line.starts_with('{')) break;  // the run was killed while it wrote this line
    if (!record.is_object()) {
      return invalid(fmt::format("{}, line {}: \"{}\" is not a JSON object: fix or remove the line, or {}", name,
                                 number, printable(line), kAdvice));
    }
    const std::string fault = reader.take(record);
    if (!fault.empty()) return invalid(fmt::format("{}, line {}: {}", name, number, fault));
  }
  if (!reader.has_run()) return invalid(fmt::format("{} has no \"run\" record: {}", name, kAdvice));
  return std::move(reader).log();
}

}  // namespace tutti::train
