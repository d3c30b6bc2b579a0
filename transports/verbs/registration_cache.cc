#include "transports/verbs/registration_cache.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

// Maximum number of registrations in a cache. Each one may split a mapping of the process, and the kernel permits
// 65,530 mappings by default.
constexpr std::size_t kMaxRegistrations = 4096;

std::uintptr_t page_bytes() {
  static const auto bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

RegistrationCache::RegistrationCache(Register reg, Deregister dereg, std::uint64_t most_bytes,
                                     std::shared_ptr<MemoryMonitor> monitor)
    : register_(std::move(reg)),
      deregister_(std::move(dereg)),
      most_bytes_(most_bytes),
      monitor_(std::move(monitor)),
      cursor_(monitor_ != nullptr ? monitor_->now() : 0) {}

RegistrationCache::~RegistrationCache() { forget_all(); }

std::shared_ptr<RegistrationCache::Registration> RegistrationCache::acquire(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::uintptr_t begin = address / page_bytes() * page_bytes();
  std::uintptr_t end = (address + memory.size() + page_bytes() - 1) / page_bytes() * page_bytes();
  if (monitor_ == nullptr || end - begin > most_bytes_) return nullptr;
  const std::scoped_lock lock(mutex_);
  drop_gone();
  // No registration contains another one, so of the registrations that start at or before `begin`, the last also ends
  // last.
  const auto behind = entries_.upper_bound(begin);
  if (behind != entries_.begin() && std::prev(behind)->second->end() >= end) {
    Registration& found = *std::prev(behind)->second;
    found.used_ = ++clock_;
    ++counts_.found;
    return std::prev(behind)->second;
  }
  const auto first = first_behind(begin);
  // Parts of one buffer get one registration together if their registrations overlap by more than a page, and if it is
  // not longer than most_bytes_. Otherwise they would replace each other in turn. This does not apply to parts that
  // only touch at an edge, because the blocks of a long buffer would then grow into ever longer registrations.
  for (auto entry = first; entry != entries_.end() && entry->first < end; ++entry) {
    if (std::min(end, entry->second->end()) - std::max(begin, entry->first) <= page_bytes()) continue;
    const std::uintptr_t low = std::min(begin, entry->first);
    const std::uintptr_t high = std::max(end, entry->second->end());
    if (high - low > most_bytes_) break;
    begin = low;
    end = high;
  }
  // Watch the memory before it is registered, so that an unmapping in between is not missed.
  if (!monitor_->watch(begin, end)) return nullptr;
  auto* const data = reinterpret_cast<std::byte*>(begin);
  const std::optional<Key> key = register_(data, end - begin);
  if (!key) {
    monitor_->unwatch(begin, end);
    ++counts_.refused;
    return nullptr;
  }
  ++counts_.made;
  drop_replaced(begin, end);
  evict_for(end - begin);
  auto entry =
      std::make_shared<Registration>(deregister_, std::span(data, end - begin), *key);  // shared with its users
  entry->used_ = ++clock_;
  counts_.bytes += end - begin;
  entries_.emplace(begin, entry);
  return entry;
}

void RegistrationCache::forget(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::scoped_lock lock(mutex_);
  drop_overlapping(begin, begin + bytes);
}

void RegistrationCache::clear() {
  const std::scoped_lock lock(mutex_);
  drop_gone();
  forget_all();
}

void RegistrationCache::forget_all() {
  while (!entries_.empty()) erase(entries_.begin());
}

void RegistrationCache::forget(const std::shared_ptr<Registration>& entry) {
  const std::scoped_lock lock(mutex_);
  const auto known = entries_.find(reinterpret_cast<std::uintptr_t>(entry->memory_.data()));
  if (known != entries_.end() && known->second == entry) erase(known);
}

RegistrationCache::Counts RegistrationCache::counts() {
  const std::scoped_lock lock(mutex_);
  return counts_;
}

RegistrationCache::Map::iterator RegistrationCache::erase(Map::iterator entry) {
  counts_.bytes -= entry->second->memory_.size();
  monitor_->unwatch(entry->first, entry->second->end());
  return entries_.erase(entry);
}

// The first registration that ends after `address`.
RegistrationCache::Map::iterator RegistrationCache::first_behind(std::uintptr_t address) {
  auto entry = entries_.upper_bound(address);
  while (entry != entries_.begin() && std::prev(entry)->second->end() > address) --entry;
  return entry;
}

void RegistrationCache::drop_overlapping(std::uintptr_t begin, std::uintptr_t end) {
  for (auto entry = first_behind(begin); entry != entries_.end() && entry->first < end;) entry = erase(entry);
}

// Drops the registrations that [begin, end) contains, or that overlap with it by more than a page.
void RegistrationCache::drop_replaced(std::uintptr_t begin, std::uintptr_t end) {
  for (auto entry = first_behind(begin); entry != entries_.end() && entry->first < end;) {
    const std::uintptr_t low = std::max(begin, entry->first);
    const std::uintptr_t high = std::min(end, entry->second->end());
    const bool covered = low == entry->first && high == entry->second->end();
    entry = covered || high - low > page_bytes() ? erase(entry) : std::next(entry);
  }
}

void RegistrationCache::drop_gone() {
  if (monitor_ == nullptr) return;
  const std::uint64_t before = entries_.size();
  const bool all_reported =
      monitor_->gone_since(cursor_, [this](std::uintptr_t begin, std::uintptr_t end) { drop_overlapping(begin, end); });
  if (!all_reported) forget_all();
  counts_.gone += before - entries_.size();
}

void RegistrationCache::evict_for(std::uint64_t bytes) {
  while (!entries_.empty() && (counts_.bytes + bytes > most_bytes_ || entries_.size() >= kMaxRegistrations)) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return a.second->used_ < b.second->used_;
    });
    erase(oldest);
    ++counts_.evicted;
  }
}

}  // namespace tutti
