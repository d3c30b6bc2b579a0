// UnixExchange: passes memfd descriptors, and datagrams, between the processes of one machine over Unix sockets
// (SOCK_SEQPACKET, abstract addresses: no file, nothing left behind). One socket per pair of ranks; its closing tells
// of a peer's death. All communicators of a process that reach the same peers share it, through SubExchange.
//
// Admission: the kernel's peer credentials must name this user, and the connecting rank must present the nonce that the
// listening rank published through the bootstrap. Everything received is length-checked. A forked child's copy says
// nothing to anybody.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
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
  // Step 1: listen. address() then goes to all peers through the bootstrap.
  static Result<std::unique_ptr<UnixExchange>> listen(std::uint32_t rank, std::uint32_t ranks);
  // Opaque, printable, below 128 bytes.
  std::string address() const { return address_.text(); }
  // Step 2, where it is not known that all peers can be reached: tries every address that is not empty, by rank, and
  // says nothing to whoever listens there. All ranks may do so at once, when all listen; any number of times. Never
  // waits. This rank itself counts as reached, and so does a listener that is overrun, whoever it belongs to.
  Result<std::vector<Reach>> probe(const std::vector<std::string>& addresses) const;
  // Step 3: connect to all lower ranks of `group`, accept all higher ones. `group` is ascending, the same on all its
  // members, this rank among them; `addresses` are by rank. Ranks outside stay unknown. Errors: kTimeout and kPeerLost
  // name the ranks; kRefused: another user.
  Status connect(const std::vector<std::string>& addresses, const std::vector<std::uint32_t>& group, Clock& clock,
                 std::int64_t deadline_ns);

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
  void poke(std::uint32_t peer, std::uint32_t segment) override;
  Result<std::unique_ptr<PokeReceiver>> receive_pokes(std::uint32_t segment) override;
  void post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) override;
  std::optional<std::string> take_datagram(std::uint32_t peer, std::uint64_t channel) override;

 private:
  class Pokes;   // PokeReceiver
  struct File {  // a descriptor, closed at the end
    explicit File(int given) : fd(given) {}
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    const int fd;
  };
  struct Notice {  // a packet still to be sent; mapping or file keep their descriptor open
    UnixOperation operation;
    std::uint32_t id;
    std::shared_ptr<Mapping> mapping{};
    std::shared_ptr<File> file{};  // shared by the notices to several peers
    std::uint64_t channel = 0;     // of a datagram
    std::string datagram{};
    int fd() const;  // that goes with it, or -1
  };
  struct Lost {
    MemoryLoss why;
    bool asked = false;   // its owner has been asked to share it again, and it has not come since
    bool report = false;  // it was, and was lost again; of a file, which is not shared again: it was lost
  };
  struct Peer {
    int socket = -1;
    ProcessWatch watch;
    bool awaited = false;  // belongs to the group and has not connected yet
    bool gone = false;
    std::deque<Notice> outbox;
    std::map<std::uint32_t, std::shared_ptr<Mapping>> mappings;
    OobDatagramQueue datagrams;
    std::map<std::uint32_t, OwnedDescriptor> files;  // that nobody has taken yet
    std::map<std::uint32_t, Lost> lost;              // mappings and files that did not arrive
  };
  struct Shared {                         // a mapping of this rank, as long as it is shared
    std::weak_ptr<Mapping> mapping;       // weak: its owner decides how long it lives
    std::vector<std::uint32_t> audience;  // empty: all peers
  };

  UnixExchange(std::uint32_t rank, std::uint32_t ranks);
  Status connect_to(std::uint32_t peer, const std::string& address, Clock& clock, std::int64_t deadline_ns);
  bool admit(int fd, pid_t process, std::span<const std::byte> packet);
  Status accept_awaited(Clock& clock, std::int64_t deadline_ns);
  std::vector<std::uint32_t> awaited() const;
  void send_pending(Peer& peer);
  void receive_pending(Peer& peer);
  bool receive_one(Peer& peer, ReceivedPacket& received);
  static void note_loss(Peer& peer, std::uint32_t id, MemoryLoss why, bool can_ask);
  bool receive_mapping(Peer& peer, std::uint32_t id, OwnedDescriptor fd);
  bool receive_file(Peer& peer, std::uint32_t id, OwnedDescriptor fd);
  void share_again(Peer& peer, std::uint32_t id);
  void lose(Peer& peer);
  void receive_news();
  Status watch_news();
  void queue(const Notice& notice, std::span<const std::uint32_t> audience);

  pid_t process_;
  std::uint32_t rank_;
  int listener_ = -1;
  UnixAddress address_;
  PokeTable pokes_;   // by segment
  std::mutex mutex_;  // guards what follows; the peers' sockets change during set-up only
  std::uint32_t last_id_ = 0;
  int news_ = -1;  // epoll over the peers' sockets and pidfds, from the first receive_pokes() on; not for children
  std::vector<Peer> peers_;
  std::map<std::uint32_t, Shared> shared_;  // by number
  SpareDescriptor spare_;
};

}  // namespace tutti
