#include "tools/tune/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "kernels/cpu/reduce.h"
#include "model/fit_choices.h"
#include "tools/perf/buffer.h"

namespace tutti::tool {
namespace {

constexpr int kSamples = 9;
constexpr double kSampleUs = 1500;
constexpr std::int64_t kMostCalls = 2000;  // largest number of calls in one sample, which are timed together
constexpr std::uint64_t kSizes[] = {8, 64, 512, 4096, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 4 << 20};
constexpr std::uint64_t kLocalSizes[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20};
constexpr std::uint64_t kMemorySizes[] = {16 << 10, 256 << 10, 1 << 20, 4 << 20};
constexpr std::uint64_t kMailboxSizes[] = {8, 1024, 8192};
constexpr std::size_t kBufferBytes = 2 * (4 << 20) + 64;
// Sizes of the calls for which there is a choice. Their measurements take fewer and shorter samples, because there are
// many of them.
constexpr std::uint64_t kShortChoices[] = {512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10};
constexpr std::uint64_t kLongestShortChoice = 16 << 10;
constexpr std::uint64_t kCopyChoices[] = {32 << 10, 128 << 10, 512 << 10};
constexpr std::uint64_t kSumChoices[] = {256 << 10, 1 << 20, 4 << 20};
constexpr int kChoiceSamples = 5;
constexpr double kChoiceUs = 500;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Measurer {
 public:
  explicit Measurer(Communicator& communicator)
      : communicator_(communicator), ranks_(static_cast<std::uint32_t>(communicator.size())) {}

  Status run(TunePart part) {
    // The output of an all_gather has a block of each rank.
    const std::size_t bytes = std::max<std::size_t>(kBufferBytes, ranks_ * kCopyChoices[2] + 64);
    auto plain = Buffer::create(communicator_, MemoryKind::kPlain, nullptr, bytes);
    if (!plain) return plain.error();
    plain_ = std::move(*plain);
    std::memset(plain_.host(), 0, bytes);
    if (part == TunePart::kMessages || part == TunePart::kCalls) return choices(part == TunePart::kCalls);
    if (part == TunePart::kCrowd) {
      return sample("mailboxes.crowd", static_cast<std::uint64_t>(communicator_.size()), 1,
                    [&] { return all_reduce(plain_.data(), 8, Algorithm::kOneShot); });
    }
    TUTTI_TRY(messages(std::string(to_string(part))));
    return part == TunePart::kMemory ? memory() : Status();
  }
  std::vector<Measurement> take() { return std::move(measured_); }

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

  // The calls for which there is a choice. `calls`: this job uses system calls in calls of any length; otherwise, in
  // none.
  Status choices(bool calls) {
    using enum MeasuredWay;
    samples_ = kChoiceSamples;
    sample_us_ = kChoiceUs;
    const auto measure = [&](MeasuredWay way, std::uint64_t bytes, const std::function<Status()>& body) {
      return sample(measurement_name(ranks_, way), bytes, 1, body);
    };
    std::byte* const data = plain_.data();
    for (const std::uint64_t bytes : kSumChoices) {
      const auto sum = [&] { return all_reduce(data, bytes, Algorithm::kTwoShot); };
      TUTTI_TRY(measure(calls ? kAllReduceByCalls : kAllReduceByMessages, bytes, sum));
      if (calls && ranks_ == 2) TUTTI_TRY(sample("attached", bytes, 1, sum));
    }
    for (const std::uint64_t bytes : kCopyChoices) {
      TUTTI_TRY(measure(calls ? kBroadcastByCalls : kBroadcastByMessages, bytes,
                        [&] { return broadcast(bytes, 0, Algorithm::kDirect); }));
      TUTTI_TRY(measure(calls ? kAllGatherByCalls : kAllGatherByMessages, bytes, [&] {
        return communicator_.all_gather(data + communicator_.rank() * bytes, data, bytes / 4, DataType::kFloat32,
                                        {.algorithm = Algorithm::kDirect});
      }));
    }
    return calls ? Status() : short_choices();
  }

  Status short_choices() {
    using enum MeasuredWay;
    auto registered = Buffer::create(communicator_, MemoryKind::kRegistered, nullptr, kLongestShortChoice + 64);
    if (!registered) return registered.error();
    std::memset(registered->host(), 0, kLongestShortChoice + 64);
    for (const std::uint64_t bytes : kShortChoices) {
      const auto measure = [&](MeasuredWay way, std::byte* data, Algorithm algorithm) {
        return sample(measurement_name(ranks_, way), bytes, 1, [&] { return all_reduce(data, bytes, algorithm); });
      };
      TUTTI_TRY(measure(kOneShot, plain_.data(), Algorithm::kOneShot));
      TUTTI_TRY(measure(kTwoShot, plain_.data(), Algorithm::kTwoShot));
      TUTTI_TRY(measure(kRegisteredOneShot, registered->data(), Algorithm::kOneShot));
      TUTTI_TRY(measure(kRegisteredTwoShot, registered->data(), Algorithm::kTwoShot));
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

  Status broadcast(std::uint64_t bytes, std::int32_t root, Algorithm algorithm = Algorithm::kChain) {
    return communicator_.broadcast(plain_.data(), plain_.data(), bytes / 4, DataType::kFloat32, root,
                                   {.algorithm = algorithm});
  }
  Status all_reduce(std::byte* data, std::uint64_t bytes, Algorithm algorithm) {
    return communicator_.all_reduce(data, data, bytes / 4, DataType::kFloat32, ReduceOp::kMax,
                                    {.algorithm = algorithm});
  }
  Result<double> most(double mine) {
    double all = 0;
    TUTTI_TRY(communicator_.all_reduce(&mine, &all, 1, DataType::kFloat64, ReduceOp::kMax));
    return all;
  }

  // Measures `body` in several samples of one or more calls each. Rank 0 stores the median and the 95th percentile of
  // the samples' times per call, divided by `parts`, the number of operations in one call of `body`. All ranks must
  // call it.
  Status sample(std::string what, std::uint64_t bytes, int parts, const std::function<Status()>& body) {
    std::vector<double> times;
    std::int64_t calls = 2;
    // The sample with the number -1 is not stored; its time determines the number of calls in the other samples.
    for (int number = -1; number < samples_; ++number) {
      if (number <= 0) TUTTI_TRY(body());
      auto ready = most(0);
      if (!ready) return ready.error();
      const double start_us = now_us();
      for (std::int64_t i = 0; i < calls; ++i) TUTTI_TRY(body());
      auto took = most((now_us() - start_us) / static_cast<double>(calls));
      if (!took) return took.error();
      if (number < 0) {
        calls = std::clamp(static_cast<std::int64_t>(sample_us_ / std::max(*took, 0.01)), std::int64_t{1}, kMostCalls);
      } else {
        times.push_back(*took / parts);
      }
    }
    std::sort(times.begin(), times.end());
    if (communicator_.rank() == 0) {
      measured_.push_back({.what = std::move(what),
                           .bytes = bytes,
                           .median_us = times[times.size() / 2],
                           .p95_us = times[times.size() * 95 / 100]});
    }
    return {};
  }

  Communicator& communicator_;
  const std::uint32_t ranks_;
  int samples_ = kSamples;        // number of samples of each measurement
  double sample_us_ = kSampleUs;  // intended duration of a sample
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

std::vector<Measurement> shortest_of(std::span<const Measurement> measured) {
  std::vector<Measurement> shortest;
  for (const Measurement& one : measured) {
    const auto same = std::find_if(shortest.begin(), shortest.end(), [&](const Measurement& other) {
      return other.what == one.what && other.bytes == one.bytes;
    });
    if (same == shortest.end()) {
      shortest.push_back(one);
    } else if (one.median_us < same->median_us) {
      *same = one;
    }
  }
  return shortest;
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
