// UnixExchange: transfers descriptors (of memfds and other files), datagrams and wake-ups between the processes of one
// machine.
//
// It uses Unix sockets (SOCK_SEQPACKET) with abstract addresses, so it creates no files, and nothing remains when the
// processes exit. There is one connection for each pair of ranks in a group (see connect()); when a peer exits, the
// kernel closes its end. All communicators of a rank that share a JobContext use one exchange, through SubExchange.
//
// Authentication: according to the kernel, the peer must belong to the same user. The connecting rank must also
// present the nonce that the listening rank has published through the bootstrap. The length of everything received is
// checked. In a forked child, the copy of this object sends nothing to the peers.
//
// UnixExchange has more than 40 methods and members. Most of the public methods implement the interface
// SegmentExchange, and one mutex guards all packets to and from a peer, because their order matters. After set-up, only
// wake-ups are sent without it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transports/shm/exchange.h"
#include "transports/shm/process_watch.h"
#include "transports/shm/unix_address.h"
#include "transports/shm/unix_packet.h"

namespace tutti {

class UnixExchange final : public SegmentExchange {
 public:
  // Step 1: listen. The caller then sends address() to all peers through the bootstrap.
  static Result<std::unique_ptr<UnixExchange>> listen(std::uint32_t rank, std::uint32_t ranks);
  // The address of this rank for connect() and probe() of its peers: printable, shorter than 128 bytes.
  std::string address() const { return address_.text(); }
  // Step 2, only needed if some peers may be unreachable: tries to connect to every other rank whose address is not
  // empty, and sends nothing. `addresses` is indexed by rank, and so is the result. All ranks may probe at the same
  // time once all ranks listen, and as often as they like. It never waits. This rank counts as reached. A listener with
  // a full queue also counts as reached, whichever user it belongs to, because its user cannot be determined then.
  // Errors: kSystem if this process is out of descriptors or memory.
  Result<std::vector<Reach>> probe(const std::vector<std::string>& addresses) const;
  // Step 3: connects to all lower ranks of `group`, and accepts connections of all higher ones. `group` is in
  // ascending order and is the same on all its members, one of which is this rank. `addresses` is indexed by rank.
  // This rank gets no connection to ranks outside the group. The call ends early with set_up_has_failed() if
  // `has_failed` is given and returns true. Errors: kTimeout and kPeerLost name a rank; kRefused: the peer belongs to
  // another user, or its address is invalid; kSystem.
  Status connect(const std::vector<std::string>& addresses, const std::vector<std::uint32_t>& group, Clock& clock,
                 std::int64_t deadline_ns, const std::function<bool()>& has_failed = nullptr);

  ~UnixExchange() override;
  std::uint32_t share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) override;
  void unshare(std::uint32_t id, std::span<const std::uint32_t> audience) override;
  std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) override;
  std::uint32_t share_file(int fd, std::span<const std::uint32_t> audience) override;
  int take_file(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> loss(std::uint32_t peer, std::uint32_t id) override;
  std::optional<MemoryLoss> take_loss(std::uint32_t peer, std::uint32_t id) override;
  bool pump() override;
  bool all_sent_to(std::span<const std::uint32_t> peers) override;
  bool peer_gone(std::uint32_t peer) override;
  pid_t process_of(std::uint32_t peer) override;
  void wake_peer(std::uint32_t peer, std::uint32_t segment) override;
  Result<std::unique_ptr<WakeReceiver>> create_wake_receiver(std::uint32_t segment) override;
  void post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) override;
  std::optional<std::string> take_datagram(std::uint32_t peer, std::uint64_t channel) override;

 private:
  class UnixWakeReceiver;  // the WakeReceiver that create_wake_receiver() returns
  struct File {            // owns a descriptor that share_file() has taken
    explicit File(int given) : fd(given) {}
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    const int fd;
  };
  struct QueuedPacket {  // a packet in an outbox; `mapping` or `file` keeps the descriptor open until it is sent
    UnixOperation operation;
    std::uint32_t id;
    std::shared_ptr<Mapping> mapping{};
    std::shared_ptr<File> file{};  // shared by the queued packets for all peers of the audience
    std::uint64_t channel = 0;     // for a datagram: its channel
    std::string datagram{};
    int fd() const;  // the descriptor that is sent with the packet, or -1
  };
  // Why this process could not receive or map a mapping or file of a peer.
  struct LossRecord {
    MemoryLoss why;
    bool asked = false;  // the owner was asked to share the mapping again, and has not done so since
    // The next take_loss() must return the loss, because the mapping was lost again after the owner was asked, or
    // because it is a file, which is never shared again.
    bool report = false;
  };
  struct Peer {
    int socket = -1;
    ProcessWatch watch;
    bool awaited = false;  // set during connect(): the peer must connect to this rank and has not done so yet
    bool gone = false;
    std::deque<QueuedPacket> outbox;
    std::map<std::uint32_t, std::shared_ptr<Mapping>> mappings;
    OobDatagramQueue datagrams;
    std::map<std::uint32_t, OwnedDescriptor> files;  // arrived but not taken, indexed by number
    std::map<std::uint32_t, LossRecord> lost;        // mappings and files that were lost, indexed by number
  };
  struct SharedMapping {                  // a mapping that this rank shares
    std::weak_ptr<Mapping> mapping;       // weak, because the caller of share() determines its lifetime
    std::vector<std::uint32_t> audience;  // empty: all peers
  };

  UnixExchange(std::uint32_t rank, std::uint32_t ranks);
  Status connect_to(std::uint32_t peer, const std::string& address, Clock& clock, std::int64_t deadline_ns,
                    const std::function<bool()>& has_failed);
  bool admit(int fd, pid_t process, std::span<const std::byte> packet);
  Status accept_awaited(Clock& clock, std::int64_t deadline_ns, const std::function<bool()>& has_failed);
  std::vector<std::uint32_t> awaited() const;
  void send_pending(Peer& peer);
  void receive_pending(Peer& peer);
  bool receive_one(Peer& peer, ReceivedPacket& received);
  static void record_loss(Peer& peer, std::uint32_t id, MemoryLoss why, bool can_ask);
  bool receive_mapping(Peer& peer, std::uint32_t id, OwnedDescriptor fd);
  bool receive_file(Peer& peer, std::uint32_t id, OwnedDescriptor fd);
  void share_again(Peer& peer, std::uint32_t id);
  void mark_gone(Peer& peer);
  void receive_ready();
  Status watch_sockets();
  void queue(const QueuedPacket& queued, std::span<const std::uint32_t> audience);

  pid_t process_;
  std::uint32_t rank_;
  int listener_ = -1;
  UnixAddress address_;
  WakeTable wake_table_;  // the key is the number of the segment
  // Guards the members below. Peer::socket and socket_events_ are also read without it once they are set, because they
  // do not change after that. During set-up, connect() uses Peer::awaited without it.
  std::mutex mutex_;
  std::uint32_t last_id_ = 0;
  // Epoll set of the sockets and pidfds of the peers that are not gone, or -1. The first create_wake_receiver() creates
  // it. Forked children replace their copy, see watch_sockets().
  int socket_events_ = -1;
  std::vector<Peer> peers_;
  std::map<std::uint32_t, SharedMapping> shared_;  // mappings of this rank, indexed by number
  SpareDescriptor spare_;
};

}  // namespace tutti
