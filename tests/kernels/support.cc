// Helpers for the tests of kernels: see support.h.
#include "support.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace tutti::kernels::testing {
namespace {

constexpr std::size_t kGuardBytes = 128;
constexpr std::byte kGuard{0xA5};

// Makes Highway choose `target` as long as this object exists.
class OnTarget {
 public:
  explicit OnTarget(std::int64_t target) { choose(target); }
  ~OnTarget() { choose(0); }
  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;

 private:
  static void choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

template <class T>
void store_element(std::span<std::byte> buffer, std::size_t index, T element) {
  std::memcpy(buffer.data() + index * sizeof(T), &element, sizeof(T));
}

// Returns the bits of a random special value, for a floating-point format with `fraction_bits` fraction bits.
std::uint64_t special_bits(int total_bits, int fraction_bits, std::mt19937_64& random) {
  const std::uint64_t any = random() >> (64 - total_bits);
  const std::uint64_t sign = any & (std::uint64_t{1} << (total_bits - 1));
  const std::uint64_t fraction = any & ((std::uint64_t{1} << fraction_bits) - 1);
  const std::uint64_t infinity = ((std::uint64_t{1} << (total_bits - 1 - fraction_bits)) - 1) << fraction_bits;
  switch (random() % 6) {
    case 0: return sign | infinity;
    case 1: return sign | infinity | fraction;            // almost always a NaN, quiet or signalling
    case 2: return sign;                                  // zero
    case 3: return sign | fraction;                       // subnormal
    case 4: return sign | (infinity - 1 - fraction % 4);  // one of the four largest finite values
    default: return any;
  }
}

// Returns a random value with a magnitude below 4, positive or negative, with equal probability for each encoding. If
// `special`, all encodings are possible.
std::uint8_t float8_bits(DataType type, bool special, std::mt19937_64& random) {
  const std::uint64_t four = type == DataType::kFloat8E4M3 ? 0x48 : 0x44;
  const std::uint64_t any = random();
  return static_cast<std::uint8_t>(special ? any : (any & 0x80) | (any >> 8) % four);
}

void fill_float(std::span<std::byte> buffer, DataType type, Values values, std::mt19937_64& random) {
  std::uniform_real_distribution<float> ordinary(-4, 4);
  const std::size_t count = buffer.size() / size_of(type);
  for (std::size_t i = 0; i < count; ++i) {
    const bool special = values == Values::kWild && random() % 8 == 0;
    const float value = ordinary(random);
    if (type == DataType::kFloat64) {
      const double precise = static_cast<double>(value) * (1 + 0x1p-40 * static_cast<double>(random() % 4096));
      store_element(buffer, i, special ? special_bits(64, 52, random) : std::bit_cast<std::uint64_t>(precise));
    } else if (type == DataType::kFloat32) {
      const auto bits = special ? special_bits(32, 23, random) : std::bit_cast<std::uint32_t>(value);
      store_element(buffer, i, static_cast<std::uint32_t>(bits));
    } else if (size_of(type) == 1) {
      store_element(buffer, i, float8_bits(type, special, random));
    } else {
      const Format format = type == DataType::kFloat16 ? kFloat16Format : kBfloat16Format;
      const auto bits =
          special ? special_bits(16, format.fraction_bits, random) : round_to(format, static_cast<double>(value));
      store_element(buffer, i, static_cast<std::uint16_t>(bits));
    }
  }
}

}  // namespace

void for_each_target(const std::function<void()>& body) {
  std::vector<std::string> done;
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const OnTarget on_target(left & -left);
    const std::string name = target_name();
    if (std::find(done.begin(), done.end(), name) != done.end()) continue;  // not compiled, so another one was used
    done.push_back(name);
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "target " + name);
    body();
  }
}

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for_each_target([&] { names.emplace_back(target_name()); });
  return names;
}

void fill(std::span<std::byte> buffer, DataType type, Values values, std::mt19937_64& random) {
  if (is_floating(type)) return fill_float(buffer, type, values, random);
  for (std::size_t i = 0; i < buffer.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random();
    std::memcpy(buffer.data() + i, &bits, std::min(sizeof(bits), buffer.size() - i));
  }
}

Buffers::Buffers(const Layout& layout, Values values, std::uint64_t seed)
    : layout_(layout), bytes_(layout.count * size_of(layout.type)) {
  std::mt19937_64 random(seed);
  memory_.reserve(layout.sources + layout.destinations);
  for (std::size_t i = 0; i < layout.sources; ++i) {
    std::byte* start = add(i, 0);
    fill({start, bytes_}, layout.type, values, random);
    sources_.push_back(start);
  }
  for (std::size_t i = 0; i < layout.destinations; ++i) {
    if (layout.in_place && i < layout.sources)
      destinations_.push_back(const_cast<std::byte*>(sources_[i]));
    else
      destinations_.push_back(add(layout.sources + i, kGuardBytes));
  }
}

std::byte* Buffers::add(std::size_t index, std::size_t tail_bytes) {
  const std::size_t offset_elements = layout_.staggered ? 1 + index * 7 % 16 : 1;
  const std::size_t head_bytes = kGuardBytes + offset_elements * size_of(layout_.type);
  return memory_.emplace_back(head_bytes + bytes_ + tail_bytes, kGuard).data() + head_bytes;
}

bool Buffers::guards_intact() const {
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  return std::all_of(memory_.begin(), memory_.end(), [&](const std::vector<std::byte>& memory) {
    const bool is_source = &memory - memory_.data() < std::ssize(sources_);
    const std::size_t tail_bytes = is_source ? 0 : kGuardBytes;
    const auto tail = memory.end() - static_cast<std::ptrdiff_t>(tail_bytes);
    return std::all_of(memory.begin(), tail - static_cast<std::ptrdiff_t>(bytes_), is_guard) &&
           std::all_of(tail, memory.end(), is_guard);
  });
}

std::uint64_t reduce_bits(const Reduction& reduction, std::span<const std::uint64_t> source_bits) {
  // More than two blocks of the smallest type on the widest target, and part of a third one.
  constexpr std::size_t kCount = 601;
  const std::size_t element_bytes = size_of(reduction.type);
  std::vector<std::vector<std::uint64_t>> memory(source_bits.size() + 1, std::vector<std::uint64_t>(kCount));
  std::vector<const std::byte*> sources;
  for (std::size_t source = 0; source < source_bits.size(); ++source) {
    auto* start = reinterpret_cast<std::byte*>(memory[source].data());
    for (std::size_t i = 0; i < kCount; ++i)
      std::memcpy(start + i * element_bytes, &source_bits[source], element_bytes);
    sources.push_back(start);
  }
  auto* destination = reinterpret_cast<std::byte*>(memory.back().data());
  kernels::reduce(reduction, sources, std::span(&destination, 1), kCount);
  std::uint64_t first = 0;
  std::memcpy(&first, destination, element_bytes);
  for (std::size_t i = 1; i < kCount; ++i) {
    EXPECT_EQ(std::memcmp(destination + i * element_bytes, &first, element_bytes), 0) << "element " << i << " differs";
  }
  return first;
}

double decode(Format format, std::uint16_t bits) {
  const int sign = bits >> 15 != 0 ? -1 : 1;
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int exponent = (bits & 0x7FFF) >> format.fraction_bits;
  const int largest_exponent = 2 * format.exponent_bias + 1;
  if (exponent == largest_exponent) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  const int unit = std::max(exponent, 1) - format.exponent_bias - format.fraction_bits;
  const int significand = exponent == 0 ? fraction : fraction + (1 << format.fraction_bits);
  return std::copysign(std::ldexp(significand, unit), sign);
}

std::uint16_t round_to(Format format, double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  const int largest_exponent = 2 * format.exponent_bias + 1;
  const auto infinity = static_cast<std::uint16_t>(largest_exponent << format.fraction_bits);
  if (std::isinf(magnitude)) return sign | infinity;
  const int smallest = 1 - format.exponent_bias;
  const int exponent = magnitude == 0 ? smallest : std::max(std::ilogb(magnitude), smallest);
  // Round the significand to units of the last place. If it overflows, the carry goes into the exponent, which gives
  // the right encoding.
  const double units = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
  const double encoded = units + std::ldexp(exponent - smallest, format.fraction_bits);
  return static_cast<std::uint16_t>(sign | (encoded >= infinity ? infinity : static_cast<std::uint16_t>(encoded)));
}

}  // namespace tutti::kernels::testing
