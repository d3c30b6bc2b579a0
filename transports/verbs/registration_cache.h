// RegistrationCache: memory of users that a network card may read or write, which remains registered between calls
// because registering is slow. The size of the cache is bounded, and the least recently used registrations are
// evicted first. The cache is safe: if memory was returned to the operating system or has got other pages, its
// registration is never found again. A MemoryMonitor notices that, or the owner of the memory calls forget() before it
// frees the memory. Memory that the MemoryMonitor cannot watch is not registered.
//
// The cache does not depend on verbs, because the functions that register memory are passed to it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "transports/rdma/memory_monitor.h"

namespace tutti {

class RegistrationCache {
 public:
  struct Key {
    void* handle = nullptr;
    std::uint32_t local = 0;
    std::uint32_t remote = 0;
  };
  using Register = std::function<std::optional<Key>(void* data, std::size_t bytes)>;
  using Deregister = std::function<void(const Key& key)>;

  // A registered range of memory. The destructor deregisters the range. It runs as soon as the cache does not contain
  // the object and no user holds it any more. All users must release the object before the cache is destroyed.
  class Registration {
   public:
    Registration(const Deregister& deregister, std::span<std::byte> memory, const Key& key)
        : deregister_(deregister), memory_(memory), key_(key) {}
    ~Registration() { deregister_(key_); }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    const Key& key() const { return key_; }
    std::uintptr_t end() const { return reinterpret_cast<std::uintptr_t>(memory_.data()) + memory_.size(); }

   private:
    friend class RegistrationCache;
    const Deregister& deregister_;
    const std::span<std::byte> memory_;  // extended to whole pages
    const Key key_;
    std::uint64_t used_ = 0;  // value of the cache's clock_ at the last use
  };

  // `reg` and `dereg` register and deregister a range of memory with the network card. `monitor` may be null; then
  // nothing is registered. `most_bytes`: limit for the memory that the cache keeps registered; 0: no memory is
  // registered.
  RegistrationCache(Register reg, Deregister dereg, std::uint64_t most_bytes, std::shared_ptr<MemoryMonitor> monitor);
  ~RegistrationCache();
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;
  std::uint64_t most_bytes() const { return most_bytes_; }

  // Returns a registration that contains all of `memory`, from the cache or a new one. Hold it as long as a network
  // card may use the memory. Returns null if the memory cannot be registered (for example: limit of locked memory, no
  // such memory), if it cannot be watched, or if its pages are longer than most_bytes(). The caller must then copy the
  // bytes.
  std::shared_ptr<Registration> acquire(std::span<const std::byte> memory);
  // Drops all registrations that overlap [data, data + bytes), so that they are never found again.
  void forget(const void* data, std::size_t bytes);
  // Drops all registrations. Those in use are deregistered when their last user releases them.
  void clear();
  // Drops `entry`, so that it is never found again. It is deregistered when its last user releases it.
  void forget(const std::shared_ptr<Registration>& entry);

  struct Counts {
    std::uint64_t found = 0;    // calls of acquire() that found a registration in the cache
    std::uint64_t made = 0;     // new registrations
    std::uint64_t refused = 0;  // attempts to register memory that failed
    std::uint64_t evicted = 0;  // registrations that were evicted to make space
    std::uint64_t gone = 0;     // registrations dropped because their memory was (or may be) unmapped or replaced
    std::uint64_t bytes = 0;    // length of all registrations that the cache contains now
  };
  Counts counts();

 private:
  // Indexed by start address. Neighbours may overlap by a page, but no registration contains another one.
  using Map = std::map<std::uintptr_t, std::shared_ptr<Registration>>;
  Map::iterator erase(Map::iterator entry);
  Map::iterator first_behind(std::uintptr_t address);
  void drop_replaced(std::uintptr_t begin, std::uintptr_t end);
  void forget_all();
  void drop_overlapping(std::uintptr_t begin, std::uintptr_t end);
  void drop_gone();
  void evict_for(std::uint64_t bytes);

  const Register register_;
  const Deregister deregister_;
  const std::uint64_t most_bytes_;
  const std::shared_ptr<MemoryMonitor> monitor_;  // shared by all caches of the process
  std::mutex mutex_;                              // guards all members below
  MemoryMonitor::Cursor cursor_ = 0;
  Map entries_;
  Counts counts_;
  std::uint64_t clock_ = 0;
};

}  // namespace tutti
