// OperationQueue: the submitted operations of one communicator, in their order, and their sequence numbers.
// Collectives run one after another in the order of their submission. Exchanges (groups of sends and receives) run at
// the same time, beside the collectives and each other. Their transfers are ordered only per pair of ranks.
//
// It has no threads or locks. Hold the engine's mutex for all functions except changes() and numbers().
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
  static constexpr std::size_t kMaxOperations = 65536;  // maximum number of operations in progress

  explicit OperationQueue(std::uint32_t ranks) : numbers_(ranks) {}

  bool empty() const { return collectives_.empty() && exchanges_.empty(); }
  std::size_t capacity() const;  // number of further operations that can be added
  // Adds an operation and gives it its sequence numbers. If it throws, no number is used.
  void add(const std::shared_ptr<Operation>& operation);
  // Returns the sequence number of a short call, which runs without the queue.
  std::uint64_t take_sequence() { return ++last_sequence_; }
  // Adds a short call that has its sequence number already, before the collectives that were added meanwhile.
  void add_short_call(const std::shared_ptr<Operation>& operation);
  // Removes an operation that has ended.
  void remove(const Operation& operation);
  // Makes the numbers of an exchange's transfers that have not started available to later transfers.
  void give_back_numbers(const Operation& operation) noexcept;

  // Lists the operations that the driver polls: the first collective, all exchanges, and then the probes. Probes check
  // for messages behind all receives, even those that were submitted after the probe, so it renumbers them.
  void list_active(std::vector<std::shared_ptr<Operation>>& active);
  // The first and the last operation, a collective if there is one. Null if the queue is empty.
  std::shared_ptr<Operation> first() const noexcept;
  std::shared_ptr<Operation> last() const noexcept;
  // Removes the `probes` for peers from which a receive is queued that has not started. The peer's next message has
  // the number of that receive. The probe has the number after it, so it would discard the message as one of an
  // earlier call.
  void remove_claimed(std::vector<Transfer>& probes) const;

  // The number of the transfers of each pair of ranks.
  PairNumbers& numbers() { return numbers_; }
  // A number that changes when an operation is added, and when note_change() is called. The driver compares it to
  // detect new operations. Any thread may read it, without the mutex.
  std::uint32_t changes() const { return changes_.load(std::memory_order_acquire); }
  void note_change() { changes_.fetch_add(1, std::memory_order_release); }

 private:
  void list_probes(std::vector<std::shared_ptr<Operation>>& active);

  // Shared with the callers' Work objects, which may be destroyed first.
  std::deque<std::shared_ptr<Operation>> collectives_;
  std::vector<std::shared_ptr<Operation>> exchanges_;
  std::uint64_t last_sequence_ = 0;  // of the collectives
  PairNumbers numbers_;
  std::uint32_t probes_ = 0;  // number of exchanges that only check for messages
  std::atomic<std::uint32_t> changes_{0};
};

}  // namespace tutti
