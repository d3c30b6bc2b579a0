#include "transports/verbs/registrations.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

std::uintptr_t page_bytes() {
  static const auto bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

Registrations::Registrations(Register reg, Deregister dereg, std::uint64_t most_bytes,
                             std::shared_ptr<MemoryMonitor> monitor)
    : register_(std::move(reg)),
      deregister_(std::move(dereg)),
      most_bytes_(most_bytes),
      monitor_(std::move(monitor)),
      cursor_(monitor_ != nullptr ? monitor_->now() : 0) {}

std::shared_ptr<Registrations::Entry> Registrations::acquire(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t begin = address / page_bytes() * page_bytes();
  const std::uintptr_t end = (address + memory.size() + page_bytes() - 1) / page_bytes() * page_bytes();
  const std::scoped_lock lock(mutex_);
  drop_gone();
  auto after = entries_.upper_bound(begin);
  if (after != entries_.begin()) {
    Entry& known = *std::prev(after)->second;
    if (reinterpret_cast<std::uintptr_t>(known.memory_.data()) + known.memory_.size() >= end) {
      known.used_ = ++clock_;
      ++counts_.found;
      return std::prev(after)->second;
    }
  }
  // Watched first, so that no end of it is missed.
  const bool kept = end - begin <= most_bytes_ && monitor_ != nullptr && monitor_->watch(begin, end);
  auto* const data = reinterpret_cast<std::byte*>(begin);
  const std::optional<Key> key = register_(data, end - begin);
  if (!key) {
    ++counts_.refused;
    return nullptr;
  }
  ++counts_.made;
  auto entry = std::make_shared<Entry>(deregister_, std::span(data, end - begin), *key);  // shared with its users
  if (!kept) return entry;
  drop_overlapping(begin, end);
  make_room(end - begin);
  entry->used_ = ++clock_;
  counts_.bytes += end - begin;
  entries_.emplace(begin, entry);
  return entry;
}

void Registrations::forget(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::scoped_lock lock(mutex_);
  drop_overlapping(begin, begin + bytes);
}

void Registrations::clear() {
  const std::scoped_lock lock(mutex_);
  entries_.clear();
  counts_.bytes = 0;
}

Registrations::Counts Registrations::counts() {
  const std::scoped_lock lock(mutex_);
  return counts_;
}

Registrations::Map::iterator Registrations::erase(Map::iterator entry) {
  counts_.bytes -= entry->second->memory_.size();
  return entries_.erase(entry);
}

void Registrations::drop_overlapping(std::uintptr_t begin, std::uintptr_t end) {
  auto entry = entries_.upper_bound(begin);
  if (entry != entries_.begin()) --entry;
  while (entry != entries_.end() && entry->first < end) {
    const bool overlaps = entry->first + entry->second->memory_.size() > begin;
    entry = overlaps ? erase(entry) : std::next(entry);
  }
}

void Registrations::drop_gone() {
  if (monitor_ == nullptr) return;
  const std::uint64_t before = entries_.size();
  const bool all_told =
      monitor_->gone_since(cursor_, [this](std::uintptr_t begin, std::uintptr_t end) { drop_overlapping(begin, end); });
  if (!all_told) {
    entries_.clear();
    counts_.bytes = 0;
  }
  counts_.gone += before - entries_.size();
}

void Registrations::make_room(std::uint64_t bytes) {
  while (!entries_.empty() && counts_.bytes + bytes > most_bytes_) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return a.second->used_ < b.second->used_;
    });
    erase(oldest);
    ++counts_.evicted;
  }
}

}  // namespace tutti
