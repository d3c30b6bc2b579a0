// Helpers for tests of calls on GPUs of several machines: inputs of int32 whose sums every rank can compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/device/calls/calls_support.h"

namespace tutti::testing {

inline constexpr std::size_t kLong = 256 * 1024 / sizeof(std::int32_t);  // elements of the shortest call in parts

inline std::string error_of(const Status& status) { return status.ok() ? "" : to_string(status.error()); }

inline std::int32_t value(std::int32_t rank, std::size_t i) {
  return (rank + 1) * 1000 + static_cast<std::int32_t>(i * 7 % 997);
}

inline std::int32_t sum(std::int32_t ranks, std::size_t i) {
  std::int32_t all = 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank) all += value(rank, i);
  return all;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline Bytes inputs(std::int32_t rank, std::size_t count) {
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value(rank, i);
  return bytes_of(values);
}

inline Bytes sums(std::int32_t ranks, std::size_t count) {
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = sum(ranks, i);
  return bytes_of(values);
}

// The GPU of a rank, and a buffer with the rank's inputs.
struct RankBuffer {
  explicit RankBuffer(const Communicator& rank, std::size_t elements = kLong)
      : gpu(rank.rank()), memory(gpu.allocate(elements * sizeof(std::int32_t))), count(elements) {
    gpu.put(memory, inputs(rank.rank(), elements));
  }
  CollectiveCall call() const {
    return {.input = pointer(memory), .output = pointer(memory), .count = count, .type = DataType::kInt32};
  }
  bool has_sums(const Communicator& rank) const { return gpu.get(memory) == sums(rank.size(), count); }

  Gpu gpu;
  cuda::DeviceMemory memory;
  std::size_t count;
};

}  // namespace tutti::testing
