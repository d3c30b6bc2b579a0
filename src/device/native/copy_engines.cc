// CopyEngines: chooses calls, computes their copies, and puts these into streams.
#include "device/native/copy_engines.h"

#include <fmt/format.h>

#include <utility>

#include "base/assert.h"
#include "base/collective_table.h"
#include "device/native/device_call.h"
#include "device/native/stream_barrier.h"

namespace tutti::detail {
namespace {

// Adds a value to a hash (FNV-1a).
std::uint64_t with_value(std::uint64_t hash, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
  return hash;
}

// A hash of those values of a call that must be the same on all ranks: its arguments, and the location of its
// input (window and offset).
std::uint64_t hash_of(std::uint32_t digest, const DeviceWindows::WindowLocation& place, bool in_output) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const std::uint64_t where = std::uint64_t{place.window} << 1 | (in_output ? 1u : 0u);
  for (const std::uint64_t value : {std::uint64_t{digest}, where, place.offset}) hash = with_value(hash, value);
  return hash;
}

// Whether the call consists of copies between two stream barriers.
bool has_barriers(const DeviceCall& call) { return call.copies && call.launch.rounds > 0; }

// Whether the ranks copy the inputs of this call from output buffers: in a broadcast from that of the root, and in an
// in-place all_gather from those of all ranks. Not defined for scatter and gather.
bool input_is_in_output(const CheckedCall& checked) {
  const CollectiveKind kind = checked.collective.kind;
  return has_root(kind) || (!replaces_input_in_place(kind) && checked.call.in_place);
}

std::uint64_t block_bytes_of(const CheckedCall& checked) { return checked.call.tag.count * checked.call.element_bytes; }

Status copy_blocks(const cuda::Driver& driver, const DeviceCall& call, const std::vector<std::uint64_t>& inputs,
                   cuda::CUstream stream) {
  for (const CopyEngines::BlockCopy& copy : call.copies->blocks) {
    const std::uint64_t from = inputs[copy.peer] + copy.from;
    const std::uint64_t to = reinterpret_cast<std::uintptr_t>(call.call.output) + copy.to;
    if (from == to) continue;  // the block is already in its place, because the call is in place
    const cuda::CUresult result = driver.api().memcpy_async(to, from, copy.bytes, stream);
    if (result == cuda::CUresult::kSuccess) continue;
    return driver.error(result, fmt::format("copying a block of {} bytes from rank {}", copy.bytes, copy.peer));
  }
  return {};
}

}  // namespace

bool CopyEngines::takes(const CheckedCall& checked, const CallOptions& options) const {
  const CollectiveKind kind = checked.collective.kind;
  return method_ != Method::kNone && options.algorithm == Algorithm::kAuto && only_moves_blocks(kind) &&
         checked.call.tag.algorithm != static_cast<std::uint8_t>(Algorithm::kUser) &&
         checked.call.lengths.counts.empty() && block_bytes_of(checked) >= least_bytes_ &&
         !(replaces_input_in_place(kind) && checked.call.in_place);
}

// Each rank decides alone. If the inputs of only some ranks are in symmetric registered memory, the other ranks use the
// kernel or the host, and the ranks wait for each other until the timeout. docs/collectives.md states this limitation.
std::optional<CopyEngines::Inputs> CopyEngines::find_inputs(const CheckedCall& checked,
                                                            const CallOptions& options) const {
  if (method_ != Method::kWindows || !takes(checked, options)) return std::nullopt;
  const Call& call = checked.call;
  const CollectiveKind kind = checked.collective.kind;
  // Scatter and gather are excluded. The other ranks cannot compute where the root's input of a scatter is, nor
  // where the root's input of an in-place gather is.
  if (has_root(kind) && has_blocks(kind)) return std::nullopt;
  const bool in_output = input_is_in_output(checked);
  auto found = in_output ? windows_->find_symmetric(call.output, checked.output_bytes)
                         : windows_->find_symmetric(call.input, checked.input_bytes);
  if (!found || !in_output || kind == CollectiveKind::kBroadcast) return found;
  for (std::size_t peer = 0; peer < found->addresses.size(); ++peer) {
    found->addresses[peer] += peer * block_bytes_of(checked);
  }
  return found;
}

void CopyEngines::copy_between_barriers(DeviceCall& call, const CheckedCall& checked, Inputs inputs) const {
  const std::uint64_t block_bytes = block_bytes_of(checked);
  const bool brings = checked.collective.kind == CollectiveKind::kBroadcast && rank_ == checked.collective.root &&
                      !checked.call.in_place;
  call.copies.emplace(Copies{.blocks = block_copies(checked.collective, rank_, block_bytes),
                             .inputs = std::move(inputs.addresses),
                             .own_bytes = brings ? block_bytes : 0,
                             .hash = hash_of(call.call.digest, inputs.place, input_is_in_output(checked))});
  call.launch.rounds = 2;
}

// The number of the call is part of the value, so that a barrier does not end by the flags of another call with the
// same arguments. If the hash or the number of a rank differs, that rank writes another value (unless the values
// collide by chance), so the barriers of the call do not end and the call times out.
void CopyEngines::set_barrier_value(DeviceCall& call) const {
  if (!has_barriers(call)) return;
  const std::uint64_t hash = with_value(call.copies->hash, calls_ + 1);
  // Bit 1 is set, so the value is neither 0 (flag not set), nor 1 (the value of calls in rounds), nor
  // StreamBarrier's kGivenUp (4).
  call.barrier_value = static_cast<std::uint32_t>(hash ^ hash >> 32) | 2u;
}

void CopyEngines::count(const DeviceCall& call) {
  if (has_barriers(call)) ++calls_;
}

void CopyEngines::copy_in_group(DeviceCall& call, const CheckedCall& checked, const CallOptions& options) const {
  if (method_ != Method::kLaunchGroup || !takes(checked, options)) return;
  call.copies.emplace(Copies{.blocks = block_copies(checked.collective, rank_, block_bytes_of(checked)), .inputs = {}});
}

// If the LaunchGroup contains all ranks (rounds is 0), all inputs are in the calls, and the launching stream is
// already ordered behind the streams of all ranks.
//
// Otherwise each rank copies for itself, between two barriers: after the first barrier all inputs are complete, and
// after the second one no rank reads them any more. If a call fails, its barriers are released and its copies still
// run. That does no harm, because a rank copies only into its own output.
Status CopyEngines::put(const cuda::Driver& driver, std::span<const std::shared_ptr<DeviceCall>> calls,
                        const StreamBarrier* barrier, cuda::CUstream stream) {
  const DeviceCall& first = *calls.front();
  if (first.launch.rounds > 0) {
    TUTTI_ASSERT(barrier != nullptr);
    if (first.copies->own_bytes > 0) {
      TUTTI_TRY(driver.check(driver.api().memcpy_async(first.copies->inputs[barrier->rank()],
                                                       reinterpret_cast<std::uintptr_t>(first.call.input),
                                                       first.copies->own_bytes, stream),
                             "copying the root's input"));
    }
    TUTTI_TRY(barrier->put(0, first.barrier_value, stream));
    TUTTI_TRY(copy_blocks(driver, first, first.copies->inputs, stream));
    return barrier->put(1, first.barrier_value, stream);
  }
  std::vector<std::uint64_t> inputs;
  for (const auto& call : calls) inputs.push_back(reinterpret_cast<std::uintptr_t>(call->call.input));
  for (const auto& call : calls) TUTTI_TRY(copy_blocks(driver, *call, inputs, stream));
  return {};
}

bool CopyEngines::only_moves_blocks(CollectiveKind kind) { return !reduces(kind) && has_plan(kind); }

std::vector<CopyEngines::BlockCopy> CopyEngines::block_copies(const Collective& collective, std::uint32_t rank,
                                                              std::uint64_t block_bytes) {
  TUTTI_ASSERT(only_moves_blocks(collective.kind) && rank < collective.ranks && collective.root < collective.ranks);
  const CollectiveRow& row = row_of(collective.kind);
  const std::uint32_t blocks = block_count(row.output, collective.ranks);
  const bool personal = row.input == BlockSet::kAll;
  std::vector<BlockCopy> copies;
  if (block_bytes == 0 || (row.root == RootHas::kTheOutput && rank != collective.root)) return copies;
  for (std::uint32_t i = 1; i <= blocks; ++i) {
    const std::uint32_t block = (rank + i) % blocks;
    copies.push_back({.peer = contributor_of(row.kind, collective.ranks, collective.root, rank, block),
                      .from = personal ? rank * block_bytes : 0,
                      .to = block * block_bytes,
                      .bytes = block_bytes});
  }
  return copies;
}

}  // namespace tutti::detail
