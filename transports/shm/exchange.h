// SegmentExchange: how the ranks of one machine obtain each other's shared memory, wake each other if they sleep on
// descriptors instead of a futex, and send each other datagrams (transports/oob_datagrams.h). It separates the
// shared-memory transport from the operating system and has several implementations:
//
//   UnixExchange       passes file descriptors between processes
//   InProcessExchange  passes pointers between threads of one process
//   SubExchange        lets another communicator of the same processes use an existing exchange
//
// The exchange of a rank serves all communicators of the rank that share its JobContext. Every shared mapping has a
// number (1, 2, ...; 0 is never used), and so has every file that UnixExchange shares. The exchange of a rank never
// assigns a number twice, even for different communicators. All functions of this interface are thread-safe, and none
// waits for an answer of another rank.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
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
#include "transports/shm/wake_table.h"
#include "tutti/result.h"

namespace tutti {

class SegmentExchange {
 public:
  virtual ~SegmentExchange() = default;
  // share() offers `mapping` to the peers in `audience` (empty: all peers) and returns its number. unshare()
  // withdraws the offer of mapping or file `id`; pass the same audience. Peers that have mapped the memory keep their
  // mapping at least until they receive the withdrawal.
  virtual std::uint32_t share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) = 0;
  virtual void unshare(std::uint32_t id, std::span<const std::uint32_t> audience) = 0;
  // Returns the mapping that `peer` shares under the number `id`. Null if there is none, or if it has not arrived yet
  // (ask again later), was lost (see take_loss()) or was withdrawn.
  virtual std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) = 0;
  // Transfer of open files, for memory that only the driver of a device can map. Each peer of the audience can take
  // the file once. share_file() takes ownership of the descriptor and returns a number as share() does; unshare()
  // withdraws the offer. take_file() gives the descriptor to the caller, or returns -1 if the file has not arrived yet
  // (ask again later), was lost (see loss()), was already taken, or was withdrawn. Only UnixExchange implements the two
  // functions. In the other exchanges they return 0 and -1: threads of one process need not pass files, and files are
  // passed by the exchange of the job, which is not a SubExchange.
  virtual std::uint32_t share_file(int fd, std::span<const std::uint32_t> audience) {
    static_cast<void>(audience);
    close(fd);
    return 0;
  }
  virtual int take_file(std::uint32_t /*peer*/, std::uint32_t /*id*/) { return -1; }
  // The reason why mapping or file `id` of the peer was lost: this process could not receive, map or accept it. Empty
  // if no loss is known.
  virtual std::optional<MemoryLoss> loss(std::uint32_t /*peer*/, std::uint32_t /*id*/) { return std::nullopt; }
  // Like loss(), but for a caller with a peer that still calls pump() and can therefore share the mapping again. The
  // first call asks the peer to do that, and returns empty. A later call returns the loss if the second attempt
  // failed as well. Each loss is returned once; the next call then starts again by asking the peer. Two kinds of
  // loss are returned by the first call already: that of a file, because files are not shared again, and that of
  // memory of a rank in this process, because the next find() tries again.
  virtual std::optional<MemoryLoss> take_loss(std::uint32_t /*peer*/, std::uint32_t /*id*/) { return std::nullopt; }
  // Sends queued packets as far as possible, and receives packets that have arrived. Returns true if nothing remains to
  // be sent. A waiting rank calls it from time to time.
  virtual bool pump() = 0;
  // Whether nothing remains to be sent to these peers. Packets for other peers do not matter, because a stopped
  // process may never receive them.
  virtual bool all_sent_to(std::span<const std::uint32_t> peers) = 0;
  // True once the process of the peer is known to have exited, or to have closed its end of the connection, or has sent
  // an invalid packet.
  virtual bool peer_gone(std::uint32_t peer) = 0;
  // The process number of the peer as this process sees it; 0 if this process cannot see it.
  virtual pid_t process_of(std::uint32_t peer) = 0;
  // Wakes `peer` if it sleeps in the communicator in which `peer` uses its segment number `segment`. Has no effect if
  // the peer has no WakeReceiver for that segment.
  virtual void wake_peer(std::uint32_t peer, std::uint32_t segment) = 0;
  // Creates the receiver of wake-ups for the communicator in which this rank uses its segment number `segment`. Only
  // one receiver may exist for a segment at a time, and the exchange must outlive it.
  virtual Result<std::unique_ptr<WakeReceiver>> create_wake_receiver(std::uint32_t segment) = 0;
  // post() queues a datagram of at most kMostDatagramBytes to `peer`, which must not be this rank. The datagram can be
  // lost, for example if the peer has exited. take_datagram() removes and returns the oldest datagram from `peer` on
  // that channel; empty if there is none.
  virtual void post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) = 0;
  virtual std::optional<std::string> take_datagram(std::uint32_t peer, std::uint64_t channel) = 0;
};

// A mapping that is offered to all peers as long as this object exists.
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
  std::shared_ptr<SegmentExchange> exchange_;  // shared by all users, which are destroyed in any order
  std::uint32_t id_;
};

// A mapping that a rank has shared, and its number. This object keeps the mapping alive, even if the owner withdraws
// it.
struct Offer {
  std::uint32_t id = 0;
  std::shared_ptr<Mapping> mapping;
};

// Waits until mapping number ids[r] of every rank r has arrived and everything that this rank has shared was sent.
// Returns the mappings indexed by rank, with `own` as the mapping of this rank. Errors: kTimeout names the first rank
// whose mapping is missing, or no rank (-1) if only a peer does not receive; kPeerLost names a rank for which
// peer_gone() is true; kSystem: this rank could not receive or map a mapping; kRefused: the mapping that a peer shared
// is unusable, or the peer shares too many. If `has_failed` is given and returns true, the wait ends early with
// set_up_has_failed().
Result<std::vector<Offer>> collect_offers(SegmentExchange& exchange, std::uint32_t rank,
                                          const std::vector<std::uint32_t>& ids, const std::shared_ptr<Mapping>& own,
                                          Clock& clock, std::int64_t deadline_ns,
                                          const std::function<bool()>& has_failed = nullptr);

// The error (kAborted) of a wait that was ended early, because `has_failed` returned true. It names a rank for which
// this rank waited, or -1. That is no sign of a fault of that rank: the caller must replace this error by the reason
// why the set-up has failed.
Error set_up_has_failed(std::int32_t missing);

// A subset of the peers of `parent`, with numbers of its own: rank i of the new communicator is peer members[i] of
// the parent. It needs no socket and no other descriptor. It shares the ownership of the parent, so the users of both
// objects may release them in any order.
class SubExchange final : public SegmentExchange {
 public:
  SubExchange(std::shared_ptr<SegmentExchange> parent, std::vector<std::uint32_t> members);
  std::uint32_t share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) override;
  void unshare(std::uint32_t id, std::span<const std::uint32_t> audience) override;
  std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> loss(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> take_loss(std::uint32_t peer, std::uint32_t id) override;
  bool pump() override;  // pumps the parent; returns true if nothing remains to be sent to the members
  bool all_sent_to(std::span<const std::uint32_t> peers) override;
  bool peer_gone(std::uint32_t peer) override;
  pid_t process_of(std::uint32_t peer) override;
  void wake_peer(std::uint32_t peer, std::uint32_t segment) override;
  Result<std::unique_ptr<WakeReceiver>> create_wake_receiver(std::uint32_t segment) override;
  void post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) override;
  std::optional<std::string> take_datagram(std::uint32_t peer, std::uint64_t channel) override;

 private:
  // Returns the numbers that the peers in `audience` have in the parent. The result is stored in `storage`, except if
  // `audience` is empty and so means all members, so that this case needs no memory allocation.
  std::span<const std::uint32_t> translate(std::span<const std::uint32_t> audience,
                                           std::vector<std::uint32_t>& storage) const;

  std::shared_ptr<SegmentExchange> parent_;  // shared with the other communicators
  std::vector<std::uint32_t> members_;
};

// The mappings, datagrams and wake-ups of ranks that one create_all() has made in this process. The InProcessExchanges
// of these ranks share it. Thread-safe.
class InProcessRelay {
 public:
  void insert(std::uint32_t rank, std::uint32_t id, std::shared_ptr<Mapping> mapping);
  void erase(std::uint32_t rank, std::uint32_t id);
  std::shared_ptr<Mapping> find(std::uint32_t rank, std::uint32_t id) const;
  WakeTable& wake_table() { return wake_table_; }
  void post(std::uint32_t from, std::uint32_t to, std::uint64_t channel, const std::string& datagram);
  std::optional<std::string> take_datagram(std::uint32_t from, std::uint32_t to, std::uint64_t channel);

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, OobDatagramQueue> datagrams_;  // indexed by (sender, receiver)
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<Mapping>> mappings_;
  WakeTable wake_table_;  // a key combines the number of a rank with the number of one of its segments
};

class InProcessExchange final : public SegmentExchange {
 public:
  // `relay` is shared by the ranks of one process, which are destroyed in any order.
  InProcessExchange(std::shared_ptr<InProcessRelay> relay, std::uint32_t rank)
      : relay_(std::move(relay)), rank_(rank) {}

  std::uint32_t share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) override;
  void unshare(std::uint32_t id, std::span<const std::uint32_t>) override { relay_->erase(rank_, id); }
  std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> loss(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> take_loss(std::uint32_t peer, std::uint32_t id) override;
  bool pump() override;
  bool all_sent_to(std::span<const std::uint32_t>) override { return true; }
  bool peer_gone(std::uint32_t) override { return false; }  // the peers are threads of this process
  pid_t process_of(std::uint32_t) override { return getpid(); }
  void wake_peer(std::uint32_t peer, std::uint32_t segment) override;
  Result<std::unique_ptr<WakeReceiver>> create_wake_receiver(std::uint32_t segment) override;
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
  // This rank's own views of adopted memory of peers, indexed by (peer, number of the mapping).
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<Mapping>> adopted_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, MemoryLoss> lost_;  // views that could not be mapped
};

}  // namespace tutti
