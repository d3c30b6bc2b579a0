// The reduction pass of one target: blocks of a few vectors, each of which is loaded from every source, combined in
// registers, and stored to every destination. Only reduce.cc includes this file, once for each of the build's Highway
// targets that has vectors.
//
// For an incomplete block (the last one, and with streamed stores also the part before the first aligned address), the
// same code works on a padded copy, so that nothing outside the buffers is read or written.
#if defined(TUTTI_KERNELS_CPU_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_CPU_REDUCE_INL_H_
#undef TUTTI_KERNELS_CPU_REDUCE_INL_H_
#else
#define TUTTI_KERNELS_CPU_REDUCE_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "kernels/cpu/float8-inl.h"
#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/reduce.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

// Stores can bypass the caches if all sources and destinations of a call together have at least this many bytes, or if
// bytes_until_reuse is at least this number; see choose_stores(). Measured on a Sapphire Rapids virtual machine with
// float32 sums: at 64 MiB in total, cached stores reach 28 GB/s and streamed stores 21 GB/s; at 256 MiB, cached stores
// reach 14 GB/s and streamed stores 28 GB/s.
inline constexpr std::size_t kStreamBytes = std::size_t{96} << 20;

// The parameters that every block of one call needs. The HWY_NOINLINE functions take a Pass by value, so that the
// compiler can keep its members in registers across the stores.
template <class T>
struct Pass {
  using C = Codec<T>;
  static constexpr int kDepth = C::kDepth;
  static constexpr std::size_t kBlock = C::kLanes << kDepth;
  static_assert(kBlock * sizeof(T) >= kStreamAlignment, "what comes before an aligned address is part of one block");

  Pass(const Reduction& reduction, std::span<const std::byte* const> source_span,
       std::span<std::byte* const> destination_span)
      : sources(source_span.data()),
        source_count(source_span.size()),
        destinations(destination_span.data()),
        destination_count(destination_span.size()),
        scaled_source(static_cast<std::size_t>(reduction.scaled_source)),
        divisor(reduction.divisor) {
    if constexpr (std::is_floating_point_v<typename C::Scalar>) {
      scale = static_cast<typename C::Scalar>(reduction.scale.real);
    } else {
      scale = static_cast<typename C::Scalar>(reduction.scale.integer);
    }
  }

  const std::byte* const* sources;
  std::size_t source_count;
  std::byte* const* destinations;
  std::size_t destination_count;
  std::size_t scaled_source;  // greater than every index if no source is scaled
  typename C::Scalar scale;
  std::uint32_t divisor;
};

// Returns the value of one block: all sources are combined, in order. `from(source)` returns the address of the block
// of that source, or of a padded copy.
template <class T, Combine kOp, class From>
HWY_INLINE auto reduced_block(const Pass<T>& pass, const From& from) {
  using C = typename Pass<T>::C;
  auto value = load_block<C, Pass<T>::kDepth>(from(0));
  if (pass.scaled_source == 0) [[unlikely]]
    value = scaled(value, pass.scale);
  for (std::size_t source = 1; source < pass.source_count; ++source) {
    auto next = load_block<C, Pass<T>::kDepth>(from(source));
    if (pass.scaled_source == source) [[unlikely]]
      next = scaled(next, pass.scale);
    value = combined<kOp>(value, next);
  }
  return finished<kOp, C::kStoresAnyNan>(value, pass.divisor);
}

// Reduces elements [begin, begin + kBlock). All loads come before the first store, so a destination may also be a
// source.
template <class T, Combine kOp, StoreMode kStoreMode>
HWY_INLINE void reduce_whole_block(const Pass<T>& pass, std::size_t begin) {
  const auto value = reduced_block<T, kOp>(
      pass, [&](std::size_t source) HWY_ATTR { return reinterpret_cast<const T*>(pass.sources[source]) + begin; });
  for (std::size_t destination = 0; destination < pass.destination_count; ++destination) {
    T* to = reinterpret_cast<T*>(pass.destinations[destination]) + begin;
    store_block<typename Pass<T>::C, Pass<T>::kDepth, kStoreMode>(value, to);
  }
}

// Reduces the elements [begin, begin + count), which are fewer than a block: copies them into a padded block, which
// reduced_block() can load, and copies the result to the destinations.
template <class T, Combine kOp>
HWY_NOINLINE void reduce_part_of_block(const Pass<T> pass, std::size_t begin, std::size_t count) {
  HWY_ALIGN T padded[Pass<T>::kBlock] = {};
  const auto value = reduced_block<T, kOp>(pass, [&](std::size_t source) HWY_ATTR {
    std::memcpy(padded, reinterpret_cast<const T*>(pass.sources[source]) + begin, count * sizeof(T));
    return static_cast<const T*>(padded);
  });
  store_block<typename Pass<T>::C, Pass<T>::kDepth, StoreMode::kCached>(value, padded);
  for (std::size_t destination = 0; destination < pass.destination_count; ++destination) {
    std::memcpy(reinterpret_cast<T*>(pass.destinations[destination]) + begin, padded, count * sizeof(T));
  }
}

// Reduces as many whole blocks as fit into the elements [begin, count). Returns the index of the first element that was
// not reduced.
template <class T, Combine kOp, StoreMode kStoreMode>
HWY_INLINE std::size_t reduce_whole_blocks(const Pass<T>& pass, std::size_t begin, std::size_t count) {
  for (; count - begin >= Pass<T>::kBlock; begin += Pass<T>::kBlock)
    reduce_whole_block<T, kOp, kStoreMode>(pass, begin);
  return begin;
}

template <class T, Combine kOp>
HWY_NOINLINE void run_pass(const Pass<T> pass, std::size_t count, StoreMode stores) {
  std::size_t begin = 0;
  if (stores == StoreMode::kStreamed) {
    const auto first = reinterpret_cast<std::uintptr_t>(pass.destinations[0]);
    begin = (0 - first) % kStreamAlignment / sizeof(T);
    if (begin > 0) reduce_part_of_block<T, kOp>(pass, 0, begin);
    begin = reduce_whole_blocks<T, kOp, StoreMode::kStreamed>(pass, begin, count);
    // Orders the streamed stores before the stores that follow, so that the caller's next release store publishes them.
    hwy::FlushStream();
  } else {
    begin = reduce_whole_blocks<T, kOp, StoreMode::kCached>(pass, begin, count);
  }
  if (begin < count) reduce_part_of_block<T, kOp>(pass, begin, count - begin);
}

// Streamed stores are faster if the destinations would be evicted from every cache before they are read again, and if
// no destination is also a source, because the cache lines of a source are in the cache already. Streamed stores
// require that all destinations reach an aligned address at the same element.
inline StoreMode choose_stores(const Reduction& reduction, std::span<const std::byte* const> sources,
                               std::span<std::byte* const> destinations, std::size_t count) {
  const std::size_t pass_bytes = (sources.size() + destinations.size()) * count * size_of(reduction.type);
  if (std::max(pass_bytes, reduction.bytes_until_reuse) < kStreamBytes) return StoreMode::kCached;
  if (count * size_of(reduction.type) < kStreamAlignment) return StoreMode::kCached;
  const auto phase = [](const std::byte* buffer) {
    return reinterpret_cast<std::uintptr_t>(buffer) % kStreamAlignment;
  };
  for (const std::byte* destination : destinations) {
    if (phase(destination) != phase(destinations[0])) return StoreMode::kCached;
    if (std::find(sources.begin(), sources.end(), destination) != sources.end()) return StoreMode::kCached;
  }
  return StoreMode::kStreamed;
}

template <class T>
void run_op(ReduceOp op, const Pass<T>& pass, std::size_t count, StoreMode stores) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPreMulSum: return run_pass<T, Combine::kAdd>(pass, count, stores);
    case ReduceOp::kProd: return run_pass<T, Combine::kMultiply>(pass, count, stores);
    case ReduceOp::kMax: return run_pass<T, Combine::kMax>(pass, count, stores);
    case ReduceOp::kMin: return run_pass<T, Combine::kMin>(pass, count, stores);
  }
}

// Runs the reduction with the instructions of this target. reduce() has checked the arguments.
void run_reduction(const Reduction& reduction, std::span<const std::byte* const> sources,
                   std::span<std::byte* const> destinations, std::size_t count) {
  const StoreMode stores = choose_stores(reduction, sources, destinations, count);
  const auto run = [&]<class T>(T) { run_op(reduction.op, Pass<T>(reduction, sources, destinations), count, stores); };
  switch (reduction.type) {
    case DataType::kInt8: return run(std::int8_t{});
    case DataType::kUint8: return run(std::uint8_t{});
    case DataType::kInt32: return run(std::int32_t{});
    case DataType::kUint32: return run(std::uint32_t{});
    case DataType::kInt64: return run(std::int64_t{});
    case DataType::kUint64: return run(std::uint64_t{});
    case DataType::kFloat16: return run(Float16{});
    case DataType::kFloat32: return run(float{});
    case DataType::kFloat64: return run(double{});
    case DataType::kBfloat16: return run(Bfloat16{});
    case DataType::kFloat8E4M3: return run(Float8E4M3{});
    case DataType::kFloat8E5M2: return run(Float8E5M2{});
  }
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
