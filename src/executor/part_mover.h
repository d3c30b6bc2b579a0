// PartMover: carries out parts of the work of a single-copy collective (single_copy.h). It copies between the ranks'
// memory, or adds the inputs of all ranks and stores the sum, directly or by system calls. Only the engine's driver
// uses an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "executor/peer_buffers.h"

namespace tutti {

class PartMover {
 public:
  // The arguments must outlive this object. A fault is stored in `bad`, except the exit of a peer: see peer_exited().
  PartMover(const Call& call, const WorkDivision& work, const PeerBuffers& buffers, MailboxBoard& marks,
            Transport& transport, std::optional<BadMessage>& bad);

  // Call it when PeerBuffers has found the memory of all ranks that this rank uses.
  void begin();
  // The most bytes of an item that move() accepts.
  std::uint64_t most_bytes(const WorkItem& item) const;
  // Moves a part of an item. `of`: the rank to whose share the item belongs. Returns false if memory of a peer or of
  // this rank could not be accessed; either peer_exited() is then true, or `bad` is set.
  bool move(const WorkItem& part, std::uint32_t of) {
    return part.from == WorkItem::kAllRanks ? add(part, of) : copy(part);
  }
  // Whether an access by system call has failed because the peer's process has exited, or has closed its connection to
  // this rank (MemoryAccess::kGone). The engine learns that from the status of the peer.
  bool peer_exited() const { return peer_exited_; }

 private:
  bool copy(const WorkItem& part);
  bool add(const WorkItem& part, std::uint32_t of);
  bool fetch(std::uint32_t peer, std::uint64_t offset, std::byte* to, std::uint64_t bytes);
  bool store(std::uint32_t peer, std::uint64_t offset, const std::byte* from, std::uint64_t bytes);
  // Evaluates the result of an access to a peer's memory by system call. Returns true if it succeeded. If the peer is
  // gone (MemoryAccess::kGone), sets peer_exited_: no more progress is then made, and the engine ends the call when the
  // status of the peer shows that. After other failures sets bad_.
  bool check_access(std::uint32_t peer, MemoryAccess access);
  std::byte* scratch(std::uint32_t of) { return scratch_begin_ + of * tile_bytes_; }

  const Call& call_;
  const WorkDivision& work_;
  const PeerBuffers& buffers_;
  MailboxBoard& marks_;
  Transport& transport_;
  std::optional<BadMessage>& bad_;
  bool peer_exited_ = false;
  std::vector<const std::byte*> sources_;  // addresses of the operands of one reduction, indexed by rank
  std::vector<std::byte*> destinations_;
  // Memory for one tile of the operand of each rank and one tile of the sum. Allocated in the first call in which
  // memory of some peer must be accessed by system calls.
  std::vector<std::byte> scratch_;
  std::byte* scratch_begin_ = nullptr;  // the first page boundary in scratch_
  std::uint64_t tile_bytes_ = 0;
};

}  // namespace tutti
