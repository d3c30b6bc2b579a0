// Registrations: users' memory that a network card may read, or write, kept registered between calls. Bounded: what was
// used longest ago goes first. Safe: memory that was given back to the system, or has got other pages, is never found
// again, because a MemoryMonitor or the memory's owner tells; memory that nobody watches is not registered.
//
// Knows nothing of verbs: how memory is registered is handed in. Thread-safe.
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

class Registrations {
 public:
  struct Key {
    void* handle = nullptr;
    std::uint32_t local = 0;
    std::uint32_t remote = 0;
  };
  using Register = std::function<std::optional<Key>(void* data, std::size_t bytes)>;
  using Deregister = std::function<void(const Key& key)>;

  // A registered range. Its registration ends with it: when nobody uses it and the cache does not know it any more.
  // Ends before the cache does.
  class Entry {
   public:
    Entry(const Deregister& deregister, std::span<std::byte> memory, const Key& key)
        : deregister_(deregister), memory_(memory), key_(key) {}
    ~Entry() { deregister_(key_); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    const Key& key() const { return key_; }
    std::uintptr_t end() const { return reinterpret_cast<std::uintptr_t>(memory_.data()) + memory_.size(); }

   private:
    friend class Registrations;
    const Deregister& deregister_;
    const std::span<std::byte> memory_;  // whole pages
    const Key key_;
    std::uint64_t used_ = 0;  // when last, by the cache's count
  };

  // `monitor` may be null. `most_bytes`: kept beyond their use; 0: nothing is.
  Registrations(Register reg, Deregister dereg, std::uint64_t most_bytes, std::shared_ptr<MemoryMonitor> monitor);
  ~Registrations();
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;
  std::uint64_t most_bytes() const { return most_bytes_; }

  // A registration of all of `memory`, found or made. Null, and the bytes must be copied, where the system refuses
  // (locked memory's limit, no such memory), nobody watches such memory, or it is longer than what may be kept. Hold it
  // as long as a card may use it.
  std::shared_ptr<Entry> acquire(std::span<const std::byte> memory);
  // What overlaps [data, data + bytes) is never found again.
  void forget(const void* data, std::size_t bytes);
  void clear();  // entries in use end later
  // It is never found again, and ends with the last who holds it.
  void forget(const std::shared_ptr<Entry>& entry);

  struct Counts {
    std::uint64_t found = 0;
    std::uint64_t made = 0;
    std::uint64_t refused = 0;  // by the system
    std::uint64_t evicted = 0;  // for room
    std::uint64_t gone = 0;     // because their memory was
    std::uint64_t bytes = 0;    // now
  };
  Counts counts();

 private:
  // By start. Neighbours may share a page; none covers another one.
  using Map = std::map<std::uintptr_t, std::shared_ptr<Entry>>;
  Map::iterator erase(Map::iterator entry);
  Map::iterator first_behind(std::uintptr_t address);
  void drop_replaced(std::uintptr_t begin, std::uintptr_t end);
  void forget_all();
  void drop_overlapping(std::uintptr_t begin, std::uintptr_t end);
  void drop_gone();
  void make_room(std::uint64_t bytes);

  const Register register_;
  const Deregister deregister_;
  const std::uint64_t most_bytes_;
  const std::shared_ptr<MemoryMonitor> monitor_;  // shared by the process's caches
  std::mutex mutex_;                              // guards all below
  MemoryMonitor::Cursor cursor_ = 0;
  Map entries_;
  Counts counts_;
  std::uint64_t clock_ = 0;
};

}  // namespace tutti
