#include "tools/tune/regret.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "base/collective_table.h"
#include "tools/perf/buffer.h"
#include "tools/perf/collective.h"

namespace tutti::tool {
namespace {

constexpr std::int64_t kFewestRounds = 3;
constexpr std::int64_t kMostCalls = 300;  // largest number of calls in one sample, which are timed together
// After the first kFewestRounds rounds, an algorithm is not measured further if its fastest sample takes more than this
// many times as long as the fastest sample of all algorithms.
constexpr double kDropFactor = 3;
constexpr std::string_view kCsvHead = "collective,transport,ranks,bytes,algorithm,chosen,median_us,least_us,samples";

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_of(std::vector<double> values) {
  TUTTI_ASSERT(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Candidate {
  Algorithm algorithm = Algorithm::kAuto;
  std::vector<double> samples{};
  double best_us() const { return *std::min_element(samples.begin(), samples.end()); }
};

class RegretRank {
 public:
  RegretRank(Communicator& communicator, const RegretOptions& options, std::string_view transport)
      : communicator_(communicator), options_(options), transport_(transport) {}

  Result<std::vector<RegretRow>> run() {
    std::size_t longest = 0;
    for (const CollectiveKind kind : options_.kinds) {
      for (const std::uint64_t bytes : options_.sizes) longest = std::max(longest, 2 * call_of(kind, bytes).second);
    }
    auto buffer = Buffer::create(communicator_, options_.memory, nullptr, longest + 64);
    if (!buffer) return buffer.error();
    buffer_ = std::move(*buffer);
    std::memset(buffer_.host(), 0, longest + 64);
    for (const CollectiveKind kind : options_.kinds) {
      for (const std::uint64_t bytes : options_.sizes) TUTTI_TRY(measure(kind, bytes));
    }
    return rows_;
  }

 private:
  // Returns this rank's part of the call, and the number of bytes that input and output span in an in-place call.
  std::pair<RankCall, std::size_t> call_of(CollectiveKind kind, std::uint64_t bytes) const {
    const PerfCollective collective{.kind = kind};
    const std::uint64_t elements = message_elements(collective, communicator_.size(), bytes, 4);
    RankCall call = make_rank_call(collective, communicator_.rank(), communicator_.size(), 0, elements);
    const std::size_t most =
        std::max(call.in_place_input_at + call.input_elements, call.in_place_output_at + call.output_elements);
    return {std::move(call), most * 4};
  }

  // Returns the maximum of the values that the ranks pass. All ranks must call it, so it is also a barrier.
  Result<double> most(double mine) {
    double all = 0;
    TUTTI_TRY(communicator_.all_reduce(&mine, &all, 1, DataType::kFloat64, ReduceOp::kMax));
    return all;
  }

  Status call(CollectiveKind kind, const RankCall& side, Algorithm algorithm) {
    // The call is in place. But if an in-place call would replace blocks of the input that other ranks read (for
    // example all-to-all), the output is behind the input in buffer_.
    std::byte* const base = buffer_.data();
    const bool apart = replaces_input_in_place(kind);
    const std::byte* input = base + side.in_place_input_at * 4;
    std::byte* output = base + side.in_place_output_at * 4 + (apart ? side.input_elements * 4 : 0);
    return communicator_.run({.kind = kind,
                              .input = side.input_elements > 0 ? input : nullptr,
                              .output = side.output_elements > 0 ? output : nullptr,
                              .count = side.count,
                              .type = DataType::kFloat32,
                              .op = ReduceOp::kMax},  // maximum: repeated calls do not change the values
                             {.algorithm = algorithm});
  }

  Result<double> sample(CollectiveKind kind, const RankCall& side, Algorithm algorithm, std::int64_t calls) {
    auto ready = most(0);
    if (!ready) return ready.error();
    const double start_us = now_us();
    for (std::int64_t i = 0; i < calls; ++i) TUTTI_TRY(call(kind, side, algorithm));
    return most((now_us() - start_us) / static_cast<double>(calls));
  }

  Status measure(CollectiveKind kind, std::uint64_t bytes) {
    const auto [side, unused] = call_of(kind, bytes);
    std::vector<Candidate> candidates;
    for (const Algorithm algorithm : algorithms_of(kind)) {
      Collective collective{.kind = kind, .ranks = static_cast<std::uint32_t>(communicator_.size())};
      if (find_generator(collective, algorithm)) candidates.push_back({.algorithm = algorithm});
    }
    const double end_us = now_us() + options_.point_s * 1e6;
    double best = 0;
    for (std::int64_t round = 0; round < options_.rounds; ++round) {
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        Candidate& one = candidates[(i + static_cast<std::size_t>(round)) % candidates.size()];
        if (round == 0) TUTTI_TRY(call(kind, side, one.algorithm));  // not timed: makes the plan and the connections
        const double guess_us = one.samples.empty() ? 0 : one.best_us();
        // An algorithm is dropped only after kFewestRounds samples, because other work on the machine may disturb a
        // few.
        if (one.samples.size() >= static_cast<std::size_t>(kFewestRounds) && guess_us > kDropFactor * best) continue;
        auto first = one.samples.empty() ? sample(kind, side, one.algorithm, 2) : Result<double>(guess_us);
        if (!first) return first.error();
        const double calls = *first > 0 ? options_.sample_us / *first : 1;
        auto took = sample(kind, side, one.algorithm,
                           std::clamp(static_cast<std::int64_t>(calls), std::int64_t{1}, kMostCalls));
        if (!took) return took.error();
        one.samples.push_back(*took);
      }
      best = candidates.front().best_us();
      for (const Candidate& one : candidates) best = std::min(best, one.best_us());
      // The clocks of the ranks differ slightly, so the ranks agree whether the time is over: all must end in the same
      // round.
      auto over = most(now_us() > end_us ? 1 : 0);
      if (!over) return over.error();
      if (*over > 0 && round + 1 >= kFewestRounds) break;
    }
    const Algorithm chosen = communicator_.auto_algorithm(kind, side.count, DataType::kFloat32);
    if (communicator_.rank() != 0) return {};
    for (const Candidate& one : candidates) {
      rows_.push_back({.collective = name_of({.kind = kind}),
                       .transport = std::string(transport_),
                       .ranks = communicator_.size(),
                       .bytes = bytes,
                       .algorithm = std::string(to_string(one.algorithm)),
                       .chosen = one.algorithm == chosen,
                       .median_us = median_of(one.samples),
                       .least_us = one.best_us(),
                       .samples = static_cast<std::int64_t>(one.samples.size())});
    }
    return {};
  }

  Communicator& communicator_;
  const RegretOptions& options_;
  const std::string_view transport_;
  Buffer buffer_;
  std::vector<RegretRow> rows_;
};

template <class Number>
bool take(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<RegretRow> parse_row(std::string_view line) {
  std::vector<std::string_view> fields;
  while (fields.size() < 10) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) break;
    line.remove_prefix(comma + 1);
  }
  if (fields.size() != 9) return std::nullopt;
  RegretRow row;
  row.collective = fields[0];
  row.transport = fields[1];
  row.algorithm = fields[4];
  row.chosen = fields[5] == "1";
  const bool good = take(fields[2], row.ranks) && take(fields[3], row.bytes) && take(fields[6], row.median_us) &&
                    take(fields[7], row.least_us) && take(fields[8], row.samples) && row.median_us > 0 &&
                    row.least_us > 0;
  return good ? std::optional(row) : std::nullopt;
}

}  // namespace

Result<std::vector<RegretRow>> measure_regret(Communicator& communicator, const RegretOptions& options,
                                              std::string_view transport) {
  return RegretRank(communicator, options, transport).run();
}

std::string to_csv(const std::vector<RegretRow>& rows) {
  std::string text = fmt::format("{}\n", kCsvHead);
  for (const RegretRow& row : rows) {
    text += fmt::format("{},{},{},{},{},{},{:.3f},{:.3f},{}\n", row.collective, row.transport, row.ranks, row.bytes,
                        row.algorithm, row.chosen ? 1 : 0, row.median_us, row.least_us, row.samples);
  }
  return text;
}

Result<std::vector<RegretRow>> parse_regret(std::string_view csv) {
  std::vector<RegretRow> rows;
  for (std::size_t number = 1; !csv.empty(); ++number) {
    const std::string_view line = csv.substr(0, csv.find('\n'));
    csv.remove_prefix(std::min(csv.size(), line.size() + 1));
    if (line.empty() || line == kCsvHead) continue;
    auto row = parse_row(line);
    if (!row) {
      return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                   fmt::format("line {}: should be {}", number, kCsvHead)};
    }
    rows.push_back(*std::move(row));
  }
  return rows;
}

Regret regret_of(const std::vector<RegretRow>& rows) {
  using Key = std::tuple<std::string, std::string, std::int32_t, std::uint64_t>;
  std::map<Key, Regret::Point> points;
  for (const RegretRow& row : rows) {
    Regret::Point& point = points[{row.collective, row.transport, row.ranks, row.bytes}];
    if (row.chosen) point.chosen = row;
    if (point.best.median_us == 0 || row.median_us < point.best.median_us) point.best = row;
    if (point.least_us == 0 || row.least_us < point.least_us) point.least_us = row.least_us;
  }
  Regret regret;
  std::vector<double> ratios;
  std::vector<double> least_ratios;
  for (auto& [key, point] : points) {
    if (point.chosen.median_us == 0) continue;
    ratios.push_back(point.ratio());
    least_ratios.push_back(point.least_ratio());
    regret.points.push_back(std::move(point));
  }
  if (ratios.empty()) return regret;
  regret.worst = *std::max_element(ratios.begin(), ratios.end());
  regret.median = median_of(std::move(ratios));
  regret.least_worst = *std::max_element(least_ratios.begin(), least_ratios.end());
  regret.least_median = median_of(std::move(least_ratios));
  return regret;
}

std::string to_text(const Regret& regret) {
  std::string text = fmt::format("{:<15} {:<5} {:>5} {:>11} {:<20} {:>12} {:<20} {:>12} {:>7} {:>7}\n", "collective",
                                 "by", "ranks", "bytes", "chosen", "us", "best", "us", "regret", "least");
  for (const Regret::Point& point : regret.points) {
    const RegretRow& row = point.chosen;
    text += fmt::format("{:<15} {:<5} {:>5} {:>11} {:<20} {:>12.2f} {:<20} {:>12.2f} {:>7.2f} {:>7.2f}\n",
                        row.collective, row.transport, row.ranks, row.bytes, row.algorithm, row.median_us,
                        point.best.algorithm, point.best.median_us, point.ratio(), point.least_ratio());
  }
  text += fmt::format("{} points: median {:.3f}, worst {:.2f}; by the quickest samples: median {:.3f}, worst {:.2f}\n",
                      regret.points.size(), regret.median, regret.worst, regret.least_median, regret.least_worst);
  text +=
      "us: the median time of a call. regret: the time of the chosen algorithm divided by that of the best one.\n"
      "least: the same with the quickest sample of each algorithm, which other work on the machine disturbs less.\n";
  return text;
}

}  // namespace tutti::tool
