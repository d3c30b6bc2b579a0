// Transport: how the ranks of one communicator reach each other. It carries messages and shows the ranks' status
// boards; it knows nothing of plans. One rank owns one Transport and uses it from one thread at a time (the thread that
// drives progress), except where a function says otherwise.
//
// A connection is a directed FIFO of messages with credits, named by (sender, receiver, lane). A message is one value;
// how it is carried is seen per message:
//   slot        the sender wrote it into a slot of the connection
//   published   it lies in the sender's registered memory and is read there, in place, until it is released
//   delivered   it has already been stored where the receiver's plan wants it
//   replied     the sender wrote it over an earlier message of the receiver's, in that one's slot of the way back (same
//               peer and lane)
// Every message carries the CallTag of its call. Messages of earlier calls (left behind by a call that failed) are
// dropped.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/call_tag.h"
#include "base/carrier.h"
#include "base/wait.h"
#include "transports/memory_loss.h"
#include "tutti/result.h"

namespace tutti {

// Plans use the lanes below. This one carries sends and receives, whose tags are numbered per pair of ranks and so say
// nothing about the order of the collectives.
inline constexpr std::uint16_t kPointToPointLane = 7;

// A place in registered memory, as its owner names it to peers. window 0 means "not registered".
struct WindowRef {
  std::uint32_t window = 0;
  std::uint64_t offset = 0;  // bytes from the window's start

  bool operator==(const WindowRef&) const = default;
};

// A received message until its release.
struct Message {
  Carrier carrier = Carrier::kSlot;
  const std::byte* data = nullptr;  // null when delivered
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;  // of kSlot: which, for a reply
  // Of kDelivered, where it was written into the output that this rank has shown: at which offset there, as its sender
  // says. It lies within.
  std::optional<std::uint64_t> landing{};
};

class SendConnection {
 public:
  virtual ~SendConnection() = default;
  virtual bool ready() = 0;       // there is a credit for one more message
  virtual std::byte* slot() = 0;  // where the next message may be written, slot_bytes long; only when ready()
  virtual void send_slot(std::uint64_t bytes, const CallTag& tag) = 0;
  // True where send_from() costs less than writing a slot and sending that.
  virtual bool sends_from_memory() const { return false; }
  // Sends the bytes at `data`, which the caller may change as soon as this returns.
  virtual void send_from(const std::byte* data, std::uint64_t bytes, const CallTag& tag) {
    if (bytes > 0) std::memcpy(slot(), data, bytes);
    send_slot(bytes, tag);
  }
  // The same of bytes that stay as they are until drained(): they may be read later, by a network card too. `whole`:
  // what they are part of and is sent in the same way, piece by piece.
  virtual void send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag) {
    static_cast<void>(whole), send_from(data, bytes, tag);
  }
  // The shortest message that the network can write into an output that the peer has shown, and that is worth it,
  // bytes; more than there is where it can not.
  virtual std::uint64_t least_aimed() const { return ~std::uint64_t{0}; }
  // The next message, sent by whatever function, goes to `offset` in the output that the peer has shown for `call`,
  // where it is `output_bytes` long; there, it is `delivered`. False: nothing was shown, or not yet, and it goes into a
  // slot; so does a message shorter than least_aimed().
  virtual bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) {
    return static_cast<void>(call), static_cast<void>(output_bytes), static_cast<void>(offset), false;
  }
  // Only after aim() has said true: sends bytes of a send's or receive's transfer as send_pinned() does, as many of
  // them in one message as the network takes, which may be more than slot_bytes. How many these are; 0: none could be
  // sent in this way, and the aim holds for send_pinned().
  virtual std::uint64_t send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                                   const CallTag& tag) {
    return static_cast<void>(whole), static_cast<void>(data), static_cast<void>(bytes), static_cast<void>(tag), 0;
  }
  virtual void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) = 0;
  virtual void send_delivered(std::uint64_t bytes, const CallTag& tag) = 0;
  // True where a reply can be sent: `over` is a message of the peer's that lies in a slot, and its bytes are the reply
  // now. The peer must not come to use that slot again before it has released the reply.
  virtual bool can_reply() const { return false; }
  virtual void send_reply(const Message& over, const CallTag& tag) { static_cast<void>(over), static_cast<void>(tag); }
  virtual bool drained() = 0;  // the receiver has released everything that was sent, or has a copy of it
  // Everything that was sent is with the system or with the receiver: this process need do nothing more for it.
  virtual bool handed_over() = 0;
  // True where that may take its time: a call ends only when its messages are handed over.
  virtual bool lingers() const { return sends_from_memory(); }
};

// kDamaged: bits of a message have changed on its way. kUnmapped: the message lies in memory that this rank has no view
// of (MemoryLoss). The last three are no connection's words: a peer has taken back what it showed; the memory that a
// rank named cannot be read or written; the system does not let this rank use the peer's memory.
enum class Arrival : std::uint8_t {
  kNothing,
  kMessage,
  kMismatch,
  kCorrupt,
  kDamaged,
  kUnmapped,
  kWithdrawn,
  kUnreachable,
  kForbidden
};

class ReceiveConnection {
 public:
  virtual ~ReceiveConnection() = default;
  // Whether the next message of `call` is there. Drops messages of earlier calls. kMismatch: the peer means another
  // call with the same sequence number; mismatched_tag() says which. kCorrupt: the message is none that a sound peer
  // sends. `place`: where the caller would store this message unchanged; a connection that wants_place() may write the
  // message there, in this or a later arrival() with the same `call` and `place` and never between, and then says
  // kDelivered. A message of another length is left for front().
  virtual Arrival arrival(const CallTag& call, std::span<std::byte> place = {}) = 0;
  virtual bool wants_place() const { return false; }
  virtual std::uint64_t least_aimed() const { return ~std::uint64_t{0}; }  // as SendConnection's
  // This rank has entered `call`: from now until hide_output() the peer may write messages of the call to where in
  // `output` they are wanted. False: no network does that for this connection, or not now; nothing was shown.
  virtual bool show_output(const CallTag& call, std::span<std::byte> output) {
    return static_cast<void>(call), static_cast<void>(output), false;
  }
  // Before a call is given up: asks the peer to write there no more. True when it has said that it will not, and
  // nothing that it has written is under way.
  virtual bool recall_output() { return true; }
  // The call has ended, or is given up: then messages may be missing, and when this returns nothing writes there any
  // more. Where the output was not recalled that may cost the connection, if the peer tries.
  virtual void hide_output(bool gave_up) { static_cast<void>(gave_up); }
  // Of a peer that has left or is lost: what it sent before may still be on its way on this connection.
  virtual bool may_bring_more() { return false; }
  virtual CallTag mismatched_tag() const = 0;
  virtual Message front() = 0;  // after arrival() said kMessage; stays valid until release()
  virtual void release() = 0;
  // After arrival() said kDamaged: which message it is, the hop, and what is wrong with it.
  virtual std::string damage() const { return {}; }
  // After arrival() said kUnmapped.
  virtual MemoryLoss loss() const { return {}; }
};

// How one rank's call ended, for its peers to see.
struct CallFailure {
  ErrorCode code = ErrorCode::kSystem;
  std::int32_t culprit = -1;                    // rank to blame, or -1
  CallArgument argument = CallArgument::kNone;  // for kMismatch; for kSystem what the culprit lacked

  bool operator==(const CallFailure&) const = default;
};

enum class PeerLife : std::uint8_t {
  kLive,         // takes part
  kLeft,         // has destroyed its communicator
  kAborted,      // has called abort()
  kLost,         // its process has ended without a word, or its connections have: peer_loss() says how
  kUnreachable,  // messages to or from it cannot pass any more; peer_trouble() says why
};

// What a rank's board shows of a peer. A snapshot: the peer goes on meanwhile. `ended` and `cut` are set as follows:
//
//   life     ended  cut
//   kLive    no     no   nothing is known that speaks against its taking part
//   kLive    no     yes  a connection to it has ended without a goodbye; why is being found out
//   kLive    yes    no   it takes no connection: its process has ended, perhaps after it had left in peace
//   kLost    yes    no   the same, and this rank still waits for connections from it
//   kLost    no     no   its process has ended without a goodbye, or its connections have
//   others   no     no
struct PeerStatus {
  PeerLife life = PeerLife::kLive;
  std::uint64_t entered = 0;  // sequence number of the last call that it entered; 0: none
  std::uint64_t left = 0;     // sequence number of the last call that it left, in whatever way
  bool ended = false;
  bool cut = false;
};

// Shared memory of this rank that peers can map, or private memory turned into such.
class Window {
 public:
  virtual ~Window() = default;  // ends the registration; adopted memory becomes private again
  virtual std::byte* data() const = 0;
  virtual std::size_t size() const = 0;
};

// ShmMailboxes: what one rank shows to all others at once, in a call that is too short for messages. It alone writes
// its own (but see `claimed`), all ranks of the communicator read. Each rank has kMailboxes of them, used in turn, so
// that a root can run ahead of those it serves: a mark, which stands beside those of the other ranks, so that few pages
// and lines are looked at, and room for a payload that is too long for the mark. Long rooms are few, so that they stay
// in caches. `number` hands over what was written before it; whoever has read looks at it again, for a rank that has
// given the call up may have written the next one.
inline constexpr std::size_t kMailboxes = 8;
inline constexpr std::size_t kMailboxBytes = 8 * 1024;
inline constexpr std::size_t kLongRooms = 2;
inline constexpr std::size_t kLongRoomBytes = 64 * 1024;
struct alignas(128) MailboxMark {     // two lines: processors fetch the second with the first
  std::atomic<std::uint64_t> number;  // the call's sequence number; 0: none yet, or it is being written
  std::atomic<std::uint64_t> digest;  // of the call's tag
  std::array<std::byte, 48> payload;  // as much as fits
  // The second line is written by whoever does this rank's part of a call for all, itself mostly.
  alignas(64) std::atomic<std::uint64_t> claimed;  // the last call in which somebody has taken that part
  std::atomic<std::uint64_t> finished;             // the last call in which it has been done
  std::atomic<std::uint64_t> steps;                // of long parts, ever
  std::atomic<std::uint32_t> claimer;  // who has taken it, for the message of a wait that has lasted too long
};
static_assert(offsetof(MailboxMark, payload) + sizeof(MailboxMark::payload) == 64);

struct ShmMailboxes {
  std::uint32_t ranks = 0;                                     // 0: there are none
  std::array<MailboxMark*, kMailboxes> marks{};                // [ranks]
  std::array<std::vector<std::byte*>, kMailboxes> rooms;       // by rank, kMailboxBytes each
  std::array<std::vector<std::byte*>, kLongRooms> long_rooms;  // by rank, kLongRoomBytes each
};

// How the ranks of a communicator get at memory of each other that is not registered. Decided at set-up, the same on
// all ranks.
enum class Attachment : std::uint8_t {
  kNone,       // not at all: another machine, or the system forbids it
  kLongCalls,  // by system calls that copy, where that is much
  kCalls,      // by system calls that copy
  kPointers,   // all ranks are threads of one process
};

enum class MemoryAccess : std::uint8_t {
  kDone,
  kGone,        // the peer's process has ended
  kRefused,     // not all of it is the peer's memory, or it may not be written
  kOwnRefused,  // the same of this rank's memory
  kForbidden,   // the system does not let this rank do so, whatever the memory
};

using MemoryForgetter = std::function<void(const void* data, std::size_t bytes)>;

class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  virtual bool shares_memory() const { return true; }  // ranks of one machine
  virtual std::uint32_t slots() const = 0;             // messages that a connection holds
  virtual std::uint64_t slot_bytes() const = 0;        // longest message, but for send_aimed()
  virtual std::uint32_t lanes() const = 0;             // lanes per pair of ranks

  // Opens this rank's end, once for each (peer, lane). The other end is opened by the peer whenever it needs it.
  // peer != this rank, lane < lanes().
  virtual Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) = 0;
  virtual Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) = 0;

  virtual Doorbell& doorbell() = 0;  // rung whenever a peer did something that this rank may wait for

  // The status board. enter_call offers this rank's output to peers that store straight into it (window credit; window
  // 0: no offer); leave_call takes the offer back, and records a failure and tells all peers of it.
  virtual void enter_call(const CallTag& tag, const WindowRef& output) = 0;
  virtual void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) = 0;
  virtual PeerStatus peer_status(std::uint32_t peer) = 0;
  // How the peer entered call `sequence`; nothing before it has, nor long after (boards remember the last few calls).
  virtual std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) = 0;
  virtual std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) = 0;

  // True once `peer` has left call `sequence`, in whatever way. A peer that has published something in a call leaves it
  // before that was released only if it gave the call up: what was read then may be anything.
  virtual bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) = 0;

  // Where `peer`'s output of call `sequence` can be stored to from here; null if it is not offered; nothing if that is
  // not known yet (the peer has not entered the call, or its window has not arrived): ask again. `bytes`: how long the
  // output must be.
  virtual std::optional<std::byte*> peer_output(std::uint32_t peer, std::uint64_t sequence, std::uint64_t bytes) = 0;

  // Thread-safe. The window that [data, data+bytes) lies in, if it is registered as a whole.
  virtual WindowRef find_window(const void* data, std::size_t bytes) = 0;
  virtual Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) = 0;
  virtual Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) = 0;
  // Whom to tell that memory is about to be given back, or replaced by other pages: what is remembered of it ends then.
  // By the owners of windows; of other memory the transport has to find out by itself. May be called from any thread,
  // after the transport's end too. Empty: nothing is remembered.
  virtual MemoryForgetter memory_forgetter() { return {}; }

  // Every rank's mailboxes; null where not all ranks of the communicator can see each other's memory. What stands there
  // is a peer's: nothing in it is trusted.
  virtual const ShmMailboxes* mailboxes() const { return nullptr; }
  // Wakes the peers that sleep and await that rank's mailbox, after it was written (number, finished: seq_cst).
  virtual void ring_sleepers(std::uint32_t /*rank*/) {}
  // Where `place`, in `peer`'s registered memory (`which`: 0 or 1, each kept until the next of its kind is asked for),
  // can be read and written from here; null if `bytes` from there are not in it; nothing if it has not arrived yet: ask
  // again. Thread of the driver.
  virtual std::optional<std::byte*> peer_memory(std::uint32_t /*peer*/, std::size_t /*which*/,
                                                const WindowRef& /*place*/, std::uint64_t /*bytes*/) {
    return nullptr;
  }
  // After peer_memory() has found nothing in the peer's `window`: why it could not be mapped here, if so. The peer is
  // asked to share it again before that is reported; it is reported once in a call.
  virtual std::optional<MemoryLoss> take_memory_loss(std::uint32_t /*peer*/, std::uint32_t /*window*/) {
    return std::nullopt;
  }
  virtual Attachment attachment() const { return Attachment::kNone; }
  // Copies `bytes` between this rank's memory and `peer`'s, at an address as the peer sees it. With calls only.
  virtual MemoryAccess read_memory(std::uint32_t /*peer*/, std::uint64_t /*address*/, std::byte* /*to*/,
                                   std::size_t /*bytes*/) {
    return MemoryAccess::kRefused;
  }
  virtual MemoryAccess write_memory(std::uint32_t /*peer*/, std::uint64_t /*address*/, const std::byte* /*from*/,
                                    std::size_t /*bytes*/) {
    return MemoryAccess::kRefused;
  }
  // Whose mailbox this rank waits for, so that no other wakes it in vain; kAnyRank: whichever.
  static constexpr std::uint32_t kAnyRank = ~std::uint32_t{0};
  virtual void await_mailbox(std::uint32_t /*rank*/) {}

  // Moves what is queued between ranks beside the messages. Called now and then by a rank that waits.
  virtual void pump() = 0;

  // Hands what was sent to the system as far as it takes it now; true when nothing is left in this process. Called
  // after every round of sends and while the rank waits.
  virtual bool flush() { return true; }

  // What has gone wrong with connections, for the message of a wait that has lasted too long; empty: nothing.
  virtual std::string troubles() { return {}; }
  // By which device, port and queue pair messages to and from the peer go; empty: nothing so particular.
  virtual std::string peer_way(std::uint32_t /*peer*/) { return {}; }
  // Of a peer that is kUnreachable: which device, port and queue pair, and what they say, or how its connection ended.
  virtual std::string peer_trouble(std::uint32_t /*peer*/) { return {}; }
  // Of a peer that is kLost: how its connection ended, if its process need not have ended; empty if it has.
  virtual std::string peer_loss(std::uint32_t /*peer*/) { return {}; }

  // Tells all peers that this rank makes no more calls. By the driver, once; only the destructor may follow.
  virtual void announce_leave() = 0;

  // Thread-safe. Tells all peers that this rank aborts.
  virtual void announce_abort() = 0;
};

}  // namespace tutti
