#include "tools/tune/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "communicator/measurement/choice_measurer.h"
#include "kernels/cpu/reduce.h"
#include "model/fit_choices.h"
#include "tools/perf/buffer.h"

namespace tutti::tool {
namespace {

constexpr int kSamples = 9;
constexpr double kSampleUs = 1500;
constexpr std::uint64_t kSizes[] = {8, 64, 512, 4096, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 4 << 20};
constexpr std::uint64_t kLocalSizes[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20};
constexpr std::uint64_t kMemorySizes[] = {16 << 10, 256 << 10, 1 << 20, 4 << 20};
constexpr std::uint64_t kMailboxSizes[] = {8, 1024, 8192};
constexpr std::size_t kBufferBytes = 2 * (4 << 20) + 64;
constexpr detail::ChoiceSamples kChoiceSamples{.samples = 5, .sample_us = 500};

class Measurer {
 public:
  explicit Measurer(Communicator& communicator) : communicator_(communicator) {}

  Status run(TunePart part) {
    if (part == TunePart::kMessages || part == TunePart::kCalls) return choices(part == TunePart::kCalls);
    auto plain = Buffer::create(communicator_, MemoryKind::kPlain, nullptr, kBufferBytes);
    if (!plain) return plain.error();
    plain_ = std::move(*plain);
    std::memset(plain_.host(), 0, kBufferBytes);
    if (part == TunePart::kCrowd) {
      return sample("mailboxes.crowd", static_cast<std::uint64_t>(communicator_.size()), 1,
                    [&] { return all_reduce(plain_.data(), 8, Algorithm::kOneShot); });
    }
    TUTTI_TRY(messages(std::string(to_string(part))));
    return part == TunePart::kMemory ? memory() : Status();
  }
  // The measurements of rank 0; empty on the other ranks.
  std::vector<Measurement> take() {
    return communicator_.rank() == 0 ? std::move(measured_) : std::vector<Measurement>();
  }

 private:
  Status messages(const std::string& level) {
    for (const std::uint64_t bytes : kSizes) {
      const auto there_and_back = [&]() -> Status {
        TUTTI_TRY(broadcast(bytes, 0));
        return broadcast(bytes, 1);
      };
      TUTTI_TRY(sample(level + ".one_way", bytes, 2, there_and_back));
    }
    // A stream of messages from rank 0. Rank 1 answers only once per burst, so that rank 0 does not get far ahead.
    for (const std::uint64_t bytes : {kSizes[0], kSizes[3], kSizes[6]}) {
      constexpr int kBurst = 32;
      const auto burst = [&]() -> Status {
        for (int i = 0; i + 1 < kBurst; ++i) TUTTI_TRY(broadcast(bytes, 0));
        return broadcast(bytes, 1);
      };
      TUTTI_TRY(sample(level + ".stream", bytes, kBurst, burst));
    }
    return {};
  }

  Status memory() {
    auto alone = communicator_.split(communicator_.rank(), 0);
    if (!alone) return alone.error();
    TUTTI_TRY(sample("alone", 8, 1, [&]() -> Status {
      return (*alone)->all_reduce(plain_.data(), plain_.data(), 2, DataType::kFloat32, ReduceOp::kMax);
    }));
    for (const std::uint64_t bytes : kMailboxSizes) {
      TUTTI_TRY(sample("mailboxes", bytes, 1, [&] { return all_reduce(plain_.data(), bytes, Algorithm::kOneShot); }));
    }
    auto registered = Buffer::create(communicator_, MemoryKind::kRegistered, nullptr, kBufferBytes);
    if (!registered) return registered.error();
    std::memset(registered->host(), 0, kBufferBytes);
    for (const std::uint64_t bytes : kMemorySizes) {
      TUTTI_TRY(
          sample("registered", bytes, 1, [&] { return all_reduce(registered->data(), bytes, Algorithm::kTwoShot); }));
    }
    for (const std::uint64_t bytes : kLocalSizes) TUTTI_TRY(local(bytes));
    return {};
  }

  // Measures the calls for which there is a choice. If `calls` is true, this job uses system calls in calls of any
  // length, otherwise in none.
  Status choices(bool calls) {
    detail::ChoiceMeasurer measurer(calls ? nullptr : &communicator_, calls ? &communicator_ : nullptr, kChoiceSamples);
    TUTTI_TRY(measurer.run());
    measured_ = measurer.measured();
    // The cost model uses the all_reduces of two ranks by system calls as well.
    const std::string by_calls = measurement_name(2, MeasuredWay::kAllReduceByCalls);
    for (const Measurement& one : measurer.measured()) {
      if (one.what != by_calls) continue;
      measured_.push_back(one);
      measured_.back().what = "attached";
    }
    return {};
  }

  Status local(std::uint64_t bytes) {
    std::byte* const to = plain_.host();
    std::byte* const from = plain_.host() + (4 << 20);
    TUTTI_TRY(sample("copy", bytes, 1, [&]() -> Status {
      std::memcpy(to, from, bytes);
      return {};
    }));
    return sample("reduce", bytes, 1, [&]() -> Status {
      const std::byte* const sources[] = {to, from};
      std::byte* const destinations[] = {to};
      kernels::Reduction reduction;
      reduction.op = ReduceOp::kMax;
      kernels::reduce(reduction, sources, destinations, bytes / 4);
      return {};
    });
  }

  Status broadcast(std::uint64_t bytes, std::int32_t root) {
    return communicator_.broadcast(plain_.data(), plain_.data(), bytes / 4, DataType::kFloat32, root,
                                   {.algorithm = Algorithm::kChain});
  }
  Status all_reduce(std::byte* data, std::uint64_t bytes, Algorithm algorithm) {
    return communicator_.all_reduce(data, data, bytes / 4, DataType::kFloat32, ReduceOp::kMax,
                                    {.algorithm = algorithm});
  }

  // Measures `body`, and stores the times per call, divided by `parts`, the number of operations in one call of `body`.
  // All ranks must call it.
  Status sample(std::string what, std::uint64_t bytes, int parts, const std::function<Status()>& body) {
    const auto times = detail::time_calls(communicator_, kSamples, kSampleUs, body);
    if (!times) return times.error();
    measured_.push_back({.what = std::move(what),
                         .bytes = bytes,
                         .median_us = times->median_us / parts,
                         .p95_us = times->p95_us / parts});
    return {};
  }

  Communicator& communicator_;
  Buffer plain_;
  std::vector<Measurement> measured_;
};

template <class Number>
bool take_number(std::string_view& line, Number& number) {
  const std::size_t comma = line.find(',');
  const std::string_view word = line.substr(0, comma);
  line.remove_prefix(comma == std::string_view::npos ? line.size() : comma + 1);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size();
}

}  // namespace

Result<std::vector<Measurement>> measure_part(Communicator& communicator, TunePart part) {
  Measurer measurer(communicator);
  TUTTI_TRY(measurer.run(part));
  return measurer.take();
}

std::string_view to_string(TunePart part) {
  switch (part) {
    case TunePart::kMemory: return "memory";
    case TunePart::kNic: return "nic";
    case TunePart::kCrowd: return "crowd";
    case TunePart::kMessages: return "messages";
    case TunePart::kCalls: return "calls";
  }
  return "invalid";
}

std::string measurements_csv(const std::vector<Measurement>& measured) {
  std::string text;
  for (const Measurement& one : measured) {
    text += fmt::format("{},{},{:.4g},{:.4g}\n", one.what, one.bytes, one.median_us, one.p95_us);
  }
  return text;
}

Result<std::vector<Measurement>> parse_measurements(std::string_view csv) {
  std::vector<Measurement> measured;
  while (!csv.empty()) {
    std::string_view line = csv.substr(0, csv.find('\n'));
    csv.remove_prefix(std::min(csv.size(), line.size() + 1));
    Measurement one;
    const std::size_t comma = line.find(',');
    one.what = line.substr(0, comma);
    line.remove_prefix(std::min(line.size(), comma == std::string_view::npos ? comma : comma + 1));
    if (!take_number(line, one.bytes) || !take_number(line, one.median_us) || !take_number(line, one.p95_us)) {
      return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                   fmt::format("\"{}\" is no measurement", one.what)};
    }
    measured.push_back(std::move(one));
  }
  return measured;
}

}  // namespace tutti::tool
