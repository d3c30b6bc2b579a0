// Sends and receives in device code. One launch moves all transfers of a call, in both directions. Block b has the
// queues b, b + blocks, b + 2 * blocks ..., and each of them has a thread that looks after it (its owner). A block
// never waits for a single queue. It repeats three steps:
//
//   look   The owner of each queue sees whether the next message can move: whether it has arrived, or whether a slot of
//          the receiver is free.
//   move   All threads of the block move these messages, between the buffers of the caller and the slots.
//   post   The owners hand over the messages that were sent, and give back the slots of those that were received.
//
// So a message that is late holds up only its own queue, and transfers of different queues may be matched in any order:
// a launch ends if each send has a receive, even if it has fewer blocks than queues. The messages and slots are handed
// over as by the evaluator (evaluate.h). The litmus tests are the same: data.litmus, envelope.litmus, credit.litmus,
// envelope_reused.litmus in tests/device/litmus.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/block.h"
#include "kernels/device/port.h"
#include "kernels/device/reduce.h"
#include "kernels/device/transfer_call.h"
#include "kernels/device/wait.h"

namespace tutti::device {

// The shared memory of a block. The arrays of kMostTransferThreads elements are indexed by owner.
struct TransferShared {
  const std::byte* from[kMostTransferThreads];
  std::byte* to[kMostTransferThreads];
  std::uint64_t bytes[kMostTransferThreads];  // 0: the queue has no message that can move
  DataType type[kMostTransferThreads];
  // Whether some queue of the block has not ended. Turn i sets and reads element i % 2. Meanwhile thread 0 clears the
  // other one, which no thread reads or sets before the next barrier.
  std::uint32_t unfinished[2];
  std::uint32_t failed;  // 1: a queue has failed or its owner has ended the wait without success, so the block ends
};

// One queue, as its owner sees it.
template <class Faults>
class TransferOwner {
 public:
  TUTTI_DEVICE TransferOwner(const TransferLaunch& launch, std::uint32_t queue)
      : launch_(launch), timer_({launch.status, kForever, launch.timeout_ns}), owns_(queue < launch.queue_count) {
    if (!owns_) return;
    queue_ = (launch.queues == nullptr ? launch.inline_queues : launch.queues)[queue];
    link_ = *queue_.link;
    load_part();
    if (link_.running != 0) report(Failure::kMisused);
    port::store(&queue_.link->running, 1u);
  }

  // True if the connection was free, as it must be, or if this thread owns no queue.
  TUTTI_DEVICE bool may_run() const { return !owns_ || link_.running == 0; }

  TUTTI_DEVICE bool unfinished() const { return owns_ && part_index_ < queue_.part_count; }

  // Looks whether the next message can move, and if so, describes it in element `self` of the arrays in `shared`. Sets
  // `failed` if the wait is over without success, or if the message does not match the part that this rank expects.
  TUTTI_DEVICE void look(TransferShared& shared, std::uint32_t self, port::Site site = port::Site::current()) {
    shared.bytes[self] = 0;
    if (!unfinished()) return;
    if (!may_move()) {
      const Outcome outcome = timer_.check(site);
      if (outcome == Outcome::kReady && !peer_has_left()) return;
      if (outcome == Outcome::kReady) report(Failure::kLeft);
      if (outcome == Outcome::kTimedOut) report(Failure::kTimedOut);
      if (outcome == Outcome::kAborted) report(Failure::kAborted);
      return port::store_together(&shared.failed, 1);
    }
    timer_.restart();
    bytes_ = lesser(part_.bytes - moved_, link_.slot_bytes);
    std::byte* const slot = slot_of(link_);
    std::byte* const data = part_.data + moved_;
    if (queue_.sends == 0) {
      Envelope envelope;
      read_envelope(link_, envelope);
      if (envelope.digest != part_.digest || envelope.bytes != bytes_) {
        report(Failure::kMismatch);
        return port::store_together(&shared.failed, 1);
      }
    }
    shared.from[self] = queue_.sends != 0 ? data : slot;
    shared.to[self] = queue_.sends != 0 ? slot : data;
    shared.type[self] = part_.type;
    shared.bytes[self] = bytes_;
  }

  // Called when all threads of the block have moved the message that look() has found.
  TUTTI_DEVICE void post() {
    ++link_.number;
    if (queue_.sends != 0)
      post_message<Faults>(link_, {bytes_, part_.digest, Carrier::kSlot, {}, kNoWindow, 0, 0});
    else
      tell_peer(link_, Faults::kReleasesCredit);
    moved_ += bytes_;
    if (moved_ < part_.bytes) return;
    ++part_index_;
    load_part();
  }

  // Keeps the position of the connection for the next launch, and marks the connection as free.
  TUTTI_DEVICE void save() const {
    if (!owns_ || !may_run()) return;
    port::store(&queue_.link->number, link_.number);
    port::store(&queue_.link->released, link_.released);
    port::store(&queue_.link->running, 0u);
  }

 private:
  TUTTI_DEVICE void load_part() {
    moved_ = 0;
    if (part_index_ == queue_.part_count) return;
    part_ = (launch_.parts == nullptr ? launch_.inline_parts : launch_.parts)[queue_.first_part + part_index_];
  }

  // Whether the next message can move: a slot of the receiver is free, or the message has arrived.
  TUTTI_DEVICE bool may_move() {
    return queue_.sends != 0 ? has_credit<Faults>(link_) : tail_of<Faults>(link_) > link_.number;
  }

  // Called while the queue waits. Reads RankStatus::left only once in kSpinsPerLook calls, because that is slow. The
  // peer may have posted its last messages before it left, so if it has left, this function checks the queue once more.
  TUTTI_DEVICE bool peer_has_left() {
    if (++waits_ % kSpinsPerLook != 0) return false;
    if ((port::load_acquire(&launch_.status->left) >> queue_.peer & 1) == 0) return false;
    return !may_move();
  }

  // Records a failure, unless this rank has recorded one before. FailureWord::step is the index of the part in its
  // queue, modulo kMaxSteps.
  TUTTI_DEVICE void report(Failure cause) const {
    const FailureWord failure{cause, 0, queue_.peer, part_index_ % kMaxSteps, true};
    port::compare_and_swap(&launch_.status->failure, 0, failure.word());
  }

  const TransferLaunch& launch_;
  WaitTimer timer_;
  const bool owns_;
  std::uint32_t part_index_ = 0;
  std::uint64_t moved_ = 0;  // bytes of the current part that have moved
  std::uint64_t bytes_ = 0;  // length of the message that look() has found
  std::uint32_t waits_ = 0;  // calls of peer_has_left()
  TransferQueue queue_;
  Link link_;
  TransferPart part_;
};

TUTTI_DEVICE void move_message(const TransferShared& shared, std::uint32_t owner) {
  const std::uint64_t bytes = shared.bytes[owner];
  if (bytes == 0) return;
  const DataType type = shared.type[owner];
  const Work work{shared.from + owner, shared.to + owner, 1, 1, bytes >> element_log2_of(type),
                  {.type = type},      ReduceMode::kFast};
  copy_all(work, split_of(work, bytes), {port::thread(), port::threads()});
}

// The body of the kernel, for all threads of a block. A launch without queues does nothing.
template <class Faults = NoFaults>
TUTTI_DEVICE void transfer(const TransferLaunch& launch) {
  if (launch.queue_count == 0) return;
  const port::BlockMemory<TransferShared> memory;
  TransferShared& shared = memory.get();
  const std::uint32_t self = port::thread();
  // the number of threads of this block that own a queue
  const std::uint32_t owners =
      launch.queue_count > port::block() ? (launch.queue_count - port::block() - 1) / port::blocks() + 1 : 0;
  TransferOwner<Faults> owner(launch, port::block() + self * port::blocks());
  if (self == 0) {
    shared.unfinished[0] = 0;
    shared.unfinished[1] = 0;
    shared.failed = 0;
  }
  port::block_barrier();
  if (!owner.may_run()) port::store_together(&shared.failed, 1);
  for (std::uint32_t turn = 0;; turn ^= 1) {
    if (self < owners) owner.look(shared, self);
    if (owner.unfinished()) port::store_together(&shared.unfinished[turn], 1);
    port::block_barrier();
    if (shared.failed != 0 || shared.unfinished[turn] == 0) break;
    if (self == 0) shared.unfinished[turn ^ 1] = 0;
    for (std::uint32_t i = 0; i < owners; ++i) move_message(shared, i);
    if constexpr (Faults::kBarrierBeforePost) port::block_barrier();
    if (self < owners && shared.bytes[self] != 0) owner.post();
    if constexpr (!Faults::kBarrierBeforePost) port::block_barrier();
  }
  owner.save();
}

}  // namespace tutti::device
