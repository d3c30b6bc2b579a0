// LaneMemory: owns the memory of one VerbsLane. The send half has the slots from which this rank sends and the
// descriptors that it sends. The receive half has the same layout, and the peer writes into it. Use it in the thread
// that drives progress.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transports/verbs/receive_targets.h"
#include "transports/verbs/wire.h"

namespace tutti {

class LaneMemory {
 public:
  LaneMemory(std::uint32_t slots, std::uint32_t slot_bytes) : slots_(slots), slot_bytes_(slot_bytes) {}
  ~LaneMemory() {
    if (start_ != nullptr) munmap(start_, 2 * half_bytes());
  }
  LaneMemory(const LaneMemory&) = delete;
  LaneMemory& operator=(const LaneMemory&) = delete;

  // Allocates the memory. Returns false and sets errno if the operating system refuses.
  bool map() {
    void* const mapped = mmap(nullptr, 2 * half_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    start_ = static_cast<std::byte*>(mapped);
    // A forked child does not get this memory. Otherwise fork() could mark the pages copy-on-write, and the next write
    // of this process could go to a copy that the NIC does not see.
    static_cast<void>(madvise(mapped, 2 * half_bytes(), MADV_DONTFORK));
    return true;
  }

  std::byte* send_half() const { return start_; }
  std::byte* receive_half() const { return start_ + half_bytes(); }
  // Bytes of one half: the slots, and one page for the descriptors of advertised outputs.
  std::uint64_t half_bytes() const { return descriptor_offset(0) + kPage; }

  // Offsets from the start of either half, in bytes. Message `number`, counted from 0, is in slot number % slots, with
  // its header at the start of the slot.
  std::uint64_t slot_offset(std::uint64_t number) const { return number % slots_ * stride(); }
  std::uint64_t descriptor_offset(std::uint32_t index) const {
    static_assert(ReceiveTargets::kDescriptors * sizeof(ReceiveTargets::Descriptor) <= kPage);
    return slots_ * stride() + index * sizeof(ReceiveTargets::Descriptor);
  }

  std::byte* send_slot(std::uint64_t number) const { return send_half() + slot_offset(number); }
  const std::byte* receive_slot(std::uint64_t number) const { return receive_half() + slot_offset(number); }
  // Returns a copy of the header of message `number`, because the peer can still change the slot.
  LaneHeader received_header(std::uint64_t number) const {
    LaneHeader header;
    std::memcpy(&header, receive_slot(number), sizeof(header));
    return header;
  }

 private:
  static constexpr std::uint64_t kPage = 4096;
  std::uint64_t stride() const { return (sizeof(LaneHeader) + slot_bytes_ + kPage - 1) / kPage * kPage; }

  const std::uint32_t slots_;
  const std::uint32_t slot_bytes_;
  std::byte* start_ = nullptr;
};

}  // namespace tutti
