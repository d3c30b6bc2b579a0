// DeviceExecutor: calls that the copy engines of the GPU carry out instead of a kernel.
#include <utility>
#include <vector>

#include "device/native/device_executor.h"

namespace tutti::detail {
namespace {

// The value that ranks write to each other at the barriers of a call. It is a hash of the arguments of the call, its
// number among the calls by copies, and the position of its input, which must be the same on all ranks. A rank with
// another position writes another value, so its barrier does not end.
std::uint32_t word_of(std::uint32_t digest, const DeviceWindows::WindowLocation& place, bool in_output,
                      std::uint64_t number) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  const std::uint64_t where = std::uint64_t{place.window} << 1 | (in_output ? 1u : 0u);
  for (const std::uint64_t value : {std::uint64_t{digest}, where, place.offset, number}) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
  }
  // Neither 0 (unset) nor 1 (the value of calls in rounds)
  return static_cast<std::uint32_t>(hash ^ hash >> 32) | 2u;
}

}  // namespace

bool DeviceExecutor::may_copy(const CheckedCall& checked, const CallOptions& options) const {
  const CollectiveKind kind = checked.collective.kind;
  return resources_->copy_method() != CopyMethod::kNone && options.algorithm == Algorithm::kAuto &&
         only_moves_blocks(kind) && checked.call.tag.algorithm != static_cast<std::uint8_t>(Algorithm::kUser) &&
         checked.call.lengths.counts.empty() &&
         checked.call.tag.count * checked.call.element_bytes >= resources_->copies_from() &&
         !(kind == CollectiveKind::kAllToAll && checked.call.in_place);
}

// If the input of only some ranks is in symmetric registered memory, the others launch the kernel, and the ranks
// wait for each other until the timeout. docs/collectives.md states this limitation.
Result<std::shared_ptr<DeviceCall>> DeviceExecutor::prepare_copies(const CheckedCall& checked,
                                                                   const CallOptions& options,
                                                                   std::int64_t timeout_ns) {
  const Call& call = checked.call;
  const CollectiveKind kind = checked.collective.kind;
  const std::uint64_t block_bytes = call.tag.count * call.element_bytes;
  // The other ranks cannot compute where the input of a scatter is, nor that of an in-place gather at the root.
  if (kind == CollectiveKind::kScatter || kind == CollectiveKind::kGather) return std::shared_ptr<DeviceCall>();
  const bool broadcasts = kind == CollectiveKind::kBroadcast;
  const bool in_output = broadcasts || (kind == CollectiveKind::kAllGather && call.in_place);
  auto found = in_output ? resources_->windows()->find_symmetric(call.output, checked.output_bytes)
                         : resources_->windows()->find_symmetric(call.input, checked.input_bytes);
  if (!found) return std::shared_ptr<DeviceCall>();
  std::vector<std::uint64_t>& inputs = found->addresses;
  for (std::uint32_t peer = 0; in_output && !broadcasts && peer < ranks_; ++peer) inputs[peer] += peer * block_bytes;
  auto begun = begin_call(checked, options, timeout_ns);
  if (!begun) return begun.error();
  std::shared_ptr<DeviceCall> made = std::move(*begun);
  const bool brings = broadcasts && rank_ == checked.collective.root && !call.in_place;
  made->copies.emplace(DeviceCopies{.copies = block_copies(checked.collective, rank_, block_bytes),
                                    .inputs = std::move(inputs),
                                    .own_bytes = brings ? block_bytes : 0});
  made->barrier_value = word_of(made->call.digest, found->place, in_output, ++copied_calls_);
  made->launch.rounds = 2;
  return made;
}

}  // namespace tutti::detail
