// SegmentExchange: how the ranks of one machine get at each other's shared memory, how they wake each other where a
// futex does not do, and how they pass datagrams (transports/oob_datagrams.h). The seam between the shared-memory
// transport and the world: UnixExchange passes descriptors between processes, InProcessExchange hands over pointers
// between threads, SubExchange lets a further communicator of the same processes use an exchange that is there already.
//
// A rank's exchange serves all communicators that the rank has on these peers. Every shared mapping has a number that
// its owner's exchange never gives twice (1, 2, ...; 0 is none), whichever communicator it belongs to. All functions
// are thread-safe and never block.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/exceptions.h"
#include "transports/memory_loss.h"
#include "transports/oob_datagrams.h"
#include "transports/shm/mapping.h"
#include "transports/shm/pokes.h"
#include "tutti/result.h"

namespace tutti {

class SegmentExchange {
 public:
  virtual ~SegmentExchange() = default;
  // Offers `mapping` to the peers in `audience` (empty: to all) and returns its number. Taken back with the same
  // audience; peers that have mapped it keep it until they notice.
  virtual std::uint32_t share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) = 0;
  virtual void unshare(std::uint32_t id, std::span<const std::uint32_t> audience) = 0;
  // The peer's mapping, or null while it has not arrived (ask again), was lost (take_loss()), or was taken back.
  virtual std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) = 0;
  // Open files, for memory that only a device's driver can map: passed on as they are, to be taken once by each peer of
  // the audience. share_file() takes the descriptor, returns a number as share() does; unshare() takes the offer back.
  // take_file() gives the descriptor to the caller; -1: it has not arrived (ask again), or was taken or taken back.
  // Between processes only: 0 and -1 elsewhere, since threads of one process need not pass anything.
  virtual std::uint32_t share_file(int fd, std::span<const std::uint32_t> audience) {
    static_cast<void>(audience);
    close(fd);
    return 0;
  }
  virtual int take_file(std::uint32_t /*peer*/, std::uint32_t /*id*/) { return -1; }
  // Why the peer's mapping or file `id` was lost on its way: this process could not receive or map it. Nothing if it
  // was not lost, as far as is known here.
  virtual std::optional<MemoryLoss> loss(std::uint32_t /*peer*/, std::uint32_t /*id*/) { return std::nullopt; }
  // The same for a caller whose peer answers, because it pumps: asks the peer to share a lost mapping again, and
  // reports a loss only if that was in vain. Reports it once, and asks anew from then on.
  virtual std::optional<MemoryLoss> take_loss(std::uint32_t /*peer*/, std::uint32_t /*id*/) { return std::nullopt; }
  // Moves what is queued in both directions; true when nothing is left to send. Called now and then by a rank that
  // waits.
  virtual bool pump() = 0;
  // Whether nothing is left to send to these peers, whatever others leave lying: a stopped process takes nothing.
  virtual bool all_sent_to(std::span<const std::uint32_t> peers) = 0;
  // True once the peer's process has ended or closed its end.
  virtual bool peer_gone(std::uint32_t peer) = 0;
  // The number of the peer's process as seen from here; 0: none can be seen.
  virtual pid_t process_of(std::uint32_t peer) = 0;
  // Wakes `peer` if it sleeps, by its PokeReceiver, in the communicator whose segment it shares as `segment`.
  virtual void poke(std::uint32_t peer, std::uint32_t segment) = 0;
  // For pokes of this rank's communicator with the segment `segment`; one at a time. The exchange must outlive it.
  virtual Result<std::unique_ptr<PokeReceiver>> receive_pokes(std::uint32_t segment) = 0;
  // A datagram of at most kMostDatagramBytes to `peer`, not this rank; lost where the peer has ended.
  virtual void post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) = 0;
  virtual std::optional<std::string> take_datagram(std::uint32_t peer, std::uint64_t channel) = 0;
};

// A mapping that is offered to peers as long as this lives.
class Share {
 public:
  Share(std::shared_ptr<SegmentExchange> exchange, const std::shared_ptr<Mapping>& mapping)
      : exchange_(std::move(exchange)), id_(exchange_->share(mapping, {})) {}
  ~Share() {
    if (exchange_ != nullptr) runs_through([this] { exchange_->unshare(id_, {}); });
  }
  Share(Share&& other) noexcept : exchange_(std::move(other.exchange_)), id_(other.id_) {}
  Share& operator=(Share&&) = delete;
  std::uint32_t id() const { return id_; }

 private:
  std::shared_ptr<SegmentExchange> exchange_;  // shared with all that use it, which end in any order
  std::uint32_t id_;
};

// A mapping as some rank offers it. Holding it keeps it, even when its owner takes the offer back.
struct Offer {
  std::uint32_t id = 0;
  std::shared_ptr<Mapping> mapping;
};

// Waits until the mapping ids[r] of every rank r has arrived and all that this rank has shared is on its way. Returns
// them by rank; `own` stands for this rank's. Errors: kTimeout and kPeerLost name a rank; kSystem: this rank could not
// receive or map one; kRefused: a peer shared something unusable.
Result<std::vector<Offer>> collect_offers(SegmentExchange& exchange, std::uint32_t rank,
                                          const std::vector<std::uint32_t>& ids, const std::shared_ptr<Mapping>& own,
                                          Clock& clock, std::int64_t deadline_ns);

// Some peers of `parent`, in an order of their own: rank i of a further communicator is the parent's peer members[i].
// It brings no socket and no descriptor of its own; parent and view end in any order.
class SubExchange final : public SegmentExchange {
 public:
  SubExchange(std::shared_ptr<SegmentExchange> parent, std::vector<std::uint32_t> members);
  std::uint32_t share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) override;
  void unshare(std::uint32_t id, std::span<const std::uint32_t> audience) override;
  std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> loss(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> take_loss(std::uint32_t peer, std::uint32_t id) override;
  bool pump() override;  // tells of its own peers
  bool all_sent_to(std::span<const std::uint32_t> peers) override;
  bool peer_gone(std::uint32_t peer) override;
  pid_t process_of(std::uint32_t peer) override;
  void poke(std::uint32_t peer, std::uint32_t segment) override;
  Result<std::unique_ptr<PokeReceiver>> receive_pokes(std::uint32_t segment) override;
  void post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) override;
  std::optional<std::string> take_datagram(std::uint32_t peer, std::uint64_t channel) override;

 private:
  // The parent's numbers of these peers; in `room` unless all are meant, so that this case needs no memory.
  std::span<const std::uint32_t> translate(std::span<const std::uint32_t> audience,
                                           std::vector<std::uint32_t>& room) const;

  std::shared_ptr<SegmentExchange> parent_;  // shared with the other communicators
  std::vector<std::uint32_t> members_;
};

// The mappings and datagrams of all ranks of one process, shared by their exchanges.
class InProcessRelay {
 public:
  void insert(std::uint32_t rank, std::uint32_t id, std::shared_ptr<Mapping> mapping);
  void erase(std::uint32_t rank, std::uint32_t id);
  std::shared_ptr<Mapping> find(std::uint32_t rank, std::uint32_t id) const;
  PokeTable& pokes() { return pokes_; }
  void post(std::uint32_t from, std::uint32_t to, std::uint64_t channel, const std::string& datagram);
  std::optional<std::string> take_datagram(std::uint32_t from, std::uint32_t to, std::uint64_t channel);

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, OobDatagramQueue> datagrams_;  // by sender and receiver
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<Mapping>> mappings_;
  PokeTable pokes_;  // by rank and segment
};

class InProcessExchange final : public SegmentExchange {
 public:
  // The relay is shared by the ranks of one process, which end in any order.
  InProcessExchange(std::shared_ptr<InProcessRelay> relay, std::uint32_t rank)
      : relay_(std::move(relay)), rank_(rank) {}

  std::uint32_t share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) override;
  void unshare(std::uint32_t id, std::span<const std::uint32_t>) override { relay_->erase(rank_, id); }
  std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> loss(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> take_loss(std::uint32_t peer, std::uint32_t id) override;
  bool pump() override;
  bool all_sent_to(std::span<const std::uint32_t>) override { return true; }
  bool peer_gone(std::uint32_t) override { return false; }  // a thread does not die alone
  pid_t process_of(std::uint32_t) override { return getpid(); }
  void poke(std::uint32_t peer, std::uint32_t segment) override;
  Result<std::unique_ptr<PokeReceiver>> receive_pokes(std::uint32_t segment) override;
  void post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) override {
    relay_->post(rank_, peer, channel, datagram);
  }
  std::optional<std::string> take_datagram(std::uint32_t peer, std::uint64_t channel) override {
    return relay_->take_datagram(peer, rank_, channel);
  }

 private:
  std::shared_ptr<InProcessRelay> relay_;
  std::uint32_t rank_;
  std::mutex mutex_;
  std::uint32_t last_id_ = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<Mapping>> adopted_;  // own views of peers' memory
  std::map<std::pair<std::uint32_t, std::uint32_t>, MemoryLoss> lost_;  // views that could not be mapped
};

}  // namespace tutti
