// SegmentExchange: how the ranks of one machine get at each other's shared memory. The seam between the shared-memory
// transport and the world: UnixExchange passes descriptors between processes, InProcessExchange hands over pointers
// between threads.
//
// Every shared mapping has a number, unique for its owner and never used again: 0 is the segment, 1, 2, ... are
// windows. All functions are thread-safe and never block.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "transports/shm/mapping.h"
#include "tutti/result.h"

namespace tutti {

class SegmentExchange {
 public:
  virtual ~SegmentExchange() = default;
  // Offers `mapping` to all peers under `id`, or takes it back. Peers that have mapped it keep it until they notice.
  virtual void share(std::uint32_t id, const std::shared_ptr<Mapping>& mapping) = 0;
  virtual void unshare(std::uint32_t id) = 0;
  // The peer's mapping, or null while it has not arrived (ask again), or was taken back.
  virtual std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) = 0;
  // Moves what is queued in both directions. Called now and then by a rank that waits.
  virtual void pump() = 0;
  // True once the peer's process has ended or closed its end.
  virtual bool peer_gone(std::uint32_t peer) = 0;
};

// The mappings of all ranks of one process, shared by their exchanges.
class InProcessHub {
 public:
  void insert(std::uint32_t rank, std::uint32_t id, std::shared_ptr<Mapping> mapping);
  void erase(std::uint32_t rank, std::uint32_t id);
  std::shared_ptr<Mapping> find(std::uint32_t rank, std::uint32_t id) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<Mapping>> mappings_;
};

class InProcessExchange final : public SegmentExchange {
 public:
  // The hub is shared by the ranks of one process, which end in any order.
  InProcessExchange(std::shared_ptr<InProcessHub> hub, std::uint32_t rank) : hub_(std::move(hub)), rank_(rank) {}
  ~InProcessExchange() override { hub_->erase(rank_, 0); }

  void share(std::uint32_t id, const std::shared_ptr<Mapping>& mapping) override { hub_->insert(rank_, id, mapping); }
  void unshare(std::uint32_t id) override { hub_->erase(rank_, id); }
  std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) override;
  void pump() override {}
  bool peer_gone(std::uint32_t) override { return false; }  // a thread does not die alone

 private:
  std::shared_ptr<InProcessHub> hub_;
  std::uint32_t rank_;
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<Mapping>> adopted_;  // own views of peers' memory
};

}  // namespace tutti
