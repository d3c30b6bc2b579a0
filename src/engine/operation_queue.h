// OperationQueue: the submitted operations of one communicator, in their order, and their sequence numbers.
// Collectives run one after another in the order of their submission. Exchanges (groups of sends and receives) do not
// wait for collectives or for earlier exchanges to end: they make progress at the same time as the current collective.
// There are two exceptions. Transfers between the same two ranks, in the same direction, run in the order of their
// submission. And an exchange that waits for a stream delays the start of all later exchanges.
//
// The class has no threads or locks. Hold the engine's mutex for all functions except changes() and numbers(). The
// functions of the object that numbers() returns have rules of their own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/operation.h"
#include "executor/exchange.h"

namespace tutti {

class OperationQueue {
 public:
  static constexpr std::size_t kMaxOperations = 65536;  // with this many, the engine accepts no further ones

  explicit OperationQueue(std::uint32_t ranks) : numbers_(ranks) {}

  bool empty() const { return collectives_.empty() && exchanges_.empty(); }
  std::size_t capacity() const;  // number of further operations that can be added
  // Adds an operation at the end. Numbers it: one sequence number for a collective, and one number for each transfer of
  // an exchange that is not a probe. If this function throws, no number is used.
  void add(const std::shared_ptr<Operation>& operation);
  // Takes the next sequence number of a collective, and returns it. Public for short calls, which bypass the queue.
  std::uint64_t take_sequence() { return ++last_sequence_; }
  // Adds a short call that could not end without the queue. It already has its sequence number, so it is put in
  // front of the collectives that were added after it got that number.
  void add_short_call(const std::shared_ptr<Operation>& operation);
  // Removes an operation that has ended. A collective must be the first one.
  void remove(const Operation& operation);
  // Called when an exchange has ended: takes back the number of each of its transfers that was given up before any
  // message moved. Each later transfer of the same pair and direction then takes the number before its own
  // (PairNumbers::give_back()).
  void give_back_numbers(const Operation& operation) noexcept;

  // Lists the operations that the driver polls, in this order: the first collective, all exchanges that are not
  // probes, and the probes. A probe looks for the first message that no receive will take. Receives that were
  // submitted after the probe take messages, too, so this function renumbers the probes.
  void list_active(std::vector<std::shared_ptr<Operation>>& active);
  // The first and the last collective. If there are no collectives, the first and the last exchange. Null if the
  // queue is empty.
  std::shared_ptr<Operation> first() const noexcept;
  std::shared_ptr<Operation> last() const noexcept;
  // Removes from `probes` each probe for a peer if the queue has a receive from that peer that has not started. The
  // next message of that peer can have the number of that receive. The probe would look for a later number, and would
  // therefore discard that message as one of an earlier call.
  void remove_claimed(std::vector<Transfer>& probes) const;

  // The counters that number the transfers with each peer, separately for sends and receives.
  PairNumbers& numbers() { return numbers_; }
  // A number that changes when an operation is added, and when note_change() is called. The driver compares it with
  // an earlier value in order to notice new operations. Any thread may read it, without the mutex.
  std::uint32_t changes() const { return changes_.load(std::memory_order_acquire); }
  void note_change() { changes_.fetch_add(1, std::memory_order_release); }

 private:
  void list_probes(std::vector<std::shared_ptr<Operation>>& active);
  void give_back_number(const Transfer& transfer) noexcept;

  // Shared with the callers' Work objects, which may be destroyed before the operation ends.
  std::deque<std::shared_ptr<Operation>> collectives_;
  std::vector<std::shared_ptr<Operation>> exchanges_;
  std::uint64_t last_sequence_ = 0;  // sequence number of the last collective that got one; 0 before the first
  PairNumbers numbers_;
  std::uint32_t probes_ = 0;          // number of probes in exchanges_
  std::uint64_t variable_calls_ = 0;  // the last Operation::variable_call
  std::atomic<std::uint32_t> changes_{0};
};

}  // namespace tutti
