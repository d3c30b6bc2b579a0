#include "engine/operation_queue.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "base/assert.h"

namespace tutti {

std::size_t OperationQueue::capacity() const {
  return kMaxOperations - std::min(kMaxOperations, collectives_.size() + exchanges_.size());
}

void OperationQueue::add(const std::shared_ptr<Operation>& operation) {
  // Numbers are taken after the operation is queued, because queueing may throw, and an operation that was not queued
  // must not use a number.
  if (operation->plan != nullptr) {
    collectives_.push_back(operation);
    operation->call.tag.sequence = take_sequence();
  } else {
    exchanges_.push_back(operation);
    bool is_variable = false;
    for (Transfer& transfer : operation->transfers) {
      is_variable |= is_part_of_variable_call(transfer);
      transfer.tag.sequence = operation->probes ? numbers_.upcoming(transfer.peer, transfer.direction)
                                                : numbers_.next(transfer.peer, transfer.direction);
    }
    if (is_variable && !operation->is_part_of_device_call) operation->variable_call = ++variable_calls_;
    if (operation->probes) ++probes_;
  }
  note_change();
}

void OperationQueue::add_short_call(const std::shared_ptr<Operation>& operation) {
  collectives_.push_front(operation);
  note_change();
}

void OperationQueue::remove(const Operation& operation) {
  if (operation.plan != nullptr) {
    TUTTI_ASSERT(collectives_.front().get() == &operation);
    collectives_.pop_front();
  } else {
    std::erase_if(exchanges_, [&](const auto& each) { return each.get() == &operation; });
    if (operation.probes) --probes_;
  }
}

void OperationQueue::give_back_numbers(const Operation& operation) noexcept {
  const Exchange* const exchange = operation.exchange.get();
  const std::span<const Transfer> transfers = exchange != nullptr ? exchange->transfers() : operation.transfers;
  // From the last to the first, so that giving back one number does not change the numbers that are given back next.
  for (std::size_t i = transfers.size(); i-- > 0;) {
    // Without an Exchange object the operation failed before or at its start, so none of its messages has moved.
    if (exchange == nullptr || exchange->untouched(transfers[i])) give_back_number(transfers[i]);
  }
}

void OperationQueue::give_back_number(const Transfer& transfer) noexcept {
  const std::uint32_t peer = transfer.peer;
  const Direction direction = transfer.direction;
  const std::uint64_t number = transfer.tag.sequence;
  numbers_.give_back(peer, direction, number);
  for (const auto& operation : exchanges_) {
    if (operation->exchange != nullptr) operation->exchange->close_gap(peer, direction, number);
    // `transfers` is empty if the operation has its Exchange, to which they were moved
    for (Transfer& later : operation->transfers) {
      if (later.peer == peer && later.direction == direction && later.tag.sequence > number) --later.tag.sequence;
    }
  }
}

void OperationQueue::list_active(std::vector<std::shared_ptr<Operation>>& active) {
  active.clear();
  if (!collectives_.empty()) active.push_back(collectives_.front());
  const auto probes = [](const std::shared_ptr<Operation>& operation) { return operation->probes; };
  std::remove_copy_if(exchanges_.begin(), exchanges_.end(), std::back_inserter(active), probes);
  if (probes_ > 0) list_probes(active);
}

void OperationQueue::list_probes(std::vector<std::shared_ptr<Operation>>& active) {
  for (const auto& probe : exchanges_) {
    if (!probe->probes) continue;
    active.push_back(probe);
    if (probe->exchange != nullptr) probe->exchange->renumber();
    // `transfers` is empty if the probe has its Exchange, to which they were moved
    for (Transfer& transfer : probe->transfers) {
      transfer.tag.sequence = numbers_.upcoming(transfer.peer, transfer.direction);
    }
  }
}

std::shared_ptr<Operation> OperationQueue::first() const noexcept {
  if (!collectives_.empty()) return collectives_.front();
  return exchanges_.empty() ? nullptr : exchanges_.front();
}

std::shared_ptr<Operation> OperationQueue::last() const noexcept {
  if (!collectives_.empty()) return collectives_.back();
  return exchanges_.empty() ? nullptr : exchanges_.back();
}

void OperationQueue::remove_claimed(std::vector<Transfer>& probes) const {
  for (const auto& operation : exchanges_) {
    if (operation->started || operation->probes) continue;
    for (const Transfer& transfer : operation->transfers) {
      if (transfer.direction != Direction::kReceive) continue;
      std::erase_if(probes, [&](const Transfer& probe) { return probe.peer == transfer.peer; });
    }
  }
}

}  // namespace tutti
