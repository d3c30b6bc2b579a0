#include "executor/part_mover.h"

#include <algorithm>
#include <span>

#include "kernels/cpu/reduce.h"

namespace tutti {
namespace {

// The maximum length of a part, in bytes. Between two parts, the peers' marks are checked. A rank that gives up waits
// some time for the others before it returns. Moving one part takes much less time, so the others notice the withdrawn
// mark in time.
constexpr std::uint64_t kPartBytes = 1 << 20;
constexpr std::uint64_t kPageBytes = 4096;
// kScratchBytes: the intended length of the scratch memory. kLongestTile, kShortestTile: limits for the length of its
// tiles. The operands that system calls have fetched, and the sum, must stay in the cache of a core until they are
// used. Measured.
constexpr std::uint64_t kScratchBytes = 1 << 20;
constexpr std::uint64_t kLongestTile = 256 * 1024;
constexpr std::uint64_t kShortestTile = 16 * 1024;

}  // namespace

PartMover::PartMover(const Call& call, const WorkDivision& work, const PeerBuffers& buffers, MailboxBoard& marks,
                     Transport& transport, std::optional<BadMessage>& bad)
    : call_(call), work_(work), buffers_(buffers), marks_(marks), transport_(transport), bad_(bad) {
  sources_.resize(marks.ranks());
}

void PartMover::begin() {
  peer_exited_ = false;
  if (!buffers_.needs_calls() || !scratch_.empty()) return;
  const std::uint32_t tiles = marks_.ranks() + 1;
  tile_bytes_ = std::clamp(kScratchBytes / tiles, kShortestTile, kLongestTile) / kPageBytes * kPageBytes;
  scratch_.resize(tiles * tile_bytes_ + kPageBytes);
  const auto start = reinterpret_cast<std::uintptr_t>(scratch_.data());
  scratch_begin_ = scratch_.data() + (kPageBytes - start % kPageBytes) % kPageBytes;
}

std::uint64_t PartMover::most_bytes(const WorkItem& item) const {
  return item.from == WorkItem::kAllRanks && buffers_.needs_calls() ? tile_bytes_ : kPartBytes;
}

bool PartMover::copy(const WorkItem& part) {
  const std::byte* from = buffers_.input(part.from).data;
  std::byte* to = buffers_.output(part.to).data;
  if (from == nullptr) return fetch(part.from, part.from_offset, to + part.to_offset, part.bytes);
  from += part.from_offset;
  if (to == nullptr) return store(part.to, part.to_offset, from, part.bytes);
  to += part.to_offset;
  if (from == to) return true;
  kernels::Reduction copy;
  copy.type = DataType::kUint8;
  kernels::reduce(copy, std::span(&from, 1), std::span(&to, 1), part.bytes);
  return true;
}

bool PartMover::add(const WorkItem& part, std::uint32_t of) {
  const std::uint32_t ranks = marks_.ranks();
  const std::uint32_t rank = marks_.rank();
  const std::uint64_t bytes = part.bytes;
  for (std::uint32_t owner = 0; owner < ranks; ++owner) {
    const std::byte* const input = buffers_.input(owner).data;
    sources_[owner] = input == nullptr ? scratch(owner) : input + part.from_offset;
    if (input == nullptr && !fetch(owner, part.from_offset, scratch(owner), bytes)) return false;
  }
  destinations_.clear();
  const std::uint32_t first = part.to == WorkItem::kAllRanks ? 0 : part.to;
  const std::uint32_t end = part.to == WorkItem::kAllRanks ? ranks : part.to + 1;
  const bool own = first <= rank && rank < end;
  // The sum is computed at this address if system calls must store it to other ranks.
  std::byte* sum = own ? buffers_.output(rank).data + part.to_offset : scratch(ranks);
  bool stored_by_calls = false;
  for (std::uint32_t owner = first; owner < end; ++owner) {
    const PeerBuffers::Location& output = buffers_.output(owner);
    if (output.data != nullptr) destinations_.push_back(output.data + part.to_offset);
    stored_by_calls |= output.needs_calls();
  }
  if (buffers_.some_output_is_fetched()) destinations_.push_back(marks_.long_payload_buffer(of) + part.to_offset);
  if (stored_by_calls && !own) destinations_.push_back(sum);
  kernels::Reduction how;
  how.type = call_.type;
  how.op = call_.op;
  how.divisor = call_.op == ReduceOp::kAvg ? ranks : 1;
  how.bytes_until_reuse = buffers_.needs_calls() ? bytes : work_.block_bytes() * ranks;
  kernels::reduce(how, sources_, destinations_, bytes / call_.element_bytes);
  for (std::uint32_t owner = first; stored_by_calls && owner < end; ++owner) {
    if (buffers_.output(owner).needs_calls() && !store(owner, part.to_offset, sum, bytes)) return false;
  }
  return true;
}

bool PartMover::fetch(std::uint32_t peer, std::uint64_t offset, std::byte* to, std::uint64_t bytes) {
  return check_access(peer, transport_.read_memory(peer, buffers_.input(peer).address + offset, to, bytes));
}

bool PartMover::store(std::uint32_t peer, std::uint64_t offset, const std::byte* from, std::uint64_t bytes) {
  return check_access(peer, transport_.write_memory(peer, buffers_.output(peer).address + offset, from, bytes));
}

bool PartMover::check_access(std::uint32_t peer, MemoryAccess access) {
  switch (access) {
    case MemoryAccess::kDone: return true;
    case MemoryAccess::kGone: peer_exited_ = true; break;
    case MemoryAccess::kOwnRefused:
      bad_ = BadMessage{.peer = marks_.rank(), .kind = Arrival::kUnreachable, .tag = {}};
      break;
    case MemoryAccess::kRefused:
    case MemoryAccess::kForbidden:
      const Arrival why = access == MemoryAccess::kRefused ? Arrival::kUnreachable : Arrival::kForbidden;
      bad_ = BadMessage{.peer = peer, .kind = marks_.holds(peer) ? why : Arrival::kWithdrawn, .tag = {}};
      break;
  }
  return false;
}

}  // namespace tutti
