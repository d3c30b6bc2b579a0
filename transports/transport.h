// Transport: how the ranks of one communicator exchange messages and read each other's status boards. It knows
// nothing about plans. One rank owns one Transport. Only one thread at a time may use it, namely the thread that
// drives the rank's progress, unless a function is documented as thread-safe.
//
// A connection is a directed FIFO of messages with flow control by credits. It is identified by (sender, receiver,
// lane). A message transfers one value. The Carrier of each message determines how the value is transferred:
//
//   slot        The sender wrote the value into a slot of the connection.
//   published   The value is in registered memory of the sender. The receiver reads it there, in place, until it
//               releases the message.
//   delivered   The value is already stored where the plan of the receiver needs it.
//   replied     The sender overwrote an earlier message of the receiver with the value. The value is in the slot of
//               that earlier message, on the connection in the opposite direction (same peer and lane).
//
// Every message has the CallTag of its call. If a call failed, its messages can remain in a connection; a later call
// drops them.
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

// The lane of point-to-point sends and receives; plans use the lanes below it. The tags of point-to-point messages
// are numbered for each pair of ranks, so they do not reveal which collective a rank has reached.
inline constexpr std::uint16_t kPointToPointLane = 7;

// A location in registered memory, in the form in which the owner sends it to peers. window 0 means "not registered".
struct WindowRef {
  std::uint32_t window = 0;
  std::uint64_t offset = 0;  // in bytes, from the start of the window

  bool operator==(const WindowRef&) const = default;
};

// A received message. Valid until it is released.
struct Message {
  Carrier carrier = Carrier::kSlot;
  const std::byte* data = nullptr;  // null if the message was delivered
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;  // for kSlot: index of the slot, needed to send a reply
  // For kDelivered: the offset in the output that this rank has advertised at which the peer has written the value.
  // The offset is the one that the sender reported, and the transport has checked that the value is within the
  // output. Empty if the value was not written into an advertised output.
  std::optional<std::uint64_t> output_offset{};
};

// The sending end of a connection. Use it in the thread that drives progress.
class SendConnection {
 public:
  virtual ~SendConnection() = default;
  virtual bool ready() = 0;       // a credit for one more message is available
  virtual std::byte* slot() = 0;  // Buffer for the next message, slot_bytes long. Call it only if ready().
  virtual void send_slot(std::uint64_t bytes, const CallTag& tag) = 0;
  // True if send_from() costs less than writing into a slot and sending that slot.
  virtual bool sends_from_memory() const { return false; }
  // Sends the bytes at `data`. The caller may change them as soon as this function returns.
  virtual void send_from(const std::byte* data, std::uint64_t bytes, const CallTag& tag) {
    if (bytes > 0) std::memcpy(slot(), data, bytes);
    send_slot(bytes, tag);
  }
  // The same for bytes that do not change until drained(), because the transport, for example a network card, may
  // read them later. `whole`: the memory range that contains `data`, all of which is sent in this way, segment by
  // segment.
  virtual void send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag) {
    static_cast<void>(whole), send_from(data, bytes, tag);
  }
  // The length, in bytes, of the shortest message for which the network should write directly into an output that the
  // peer has advertised. If the network cannot write there, the value is greater than any length.
  virtual std::uint64_t min_aimed_bytes() const { return ~std::uint64_t{0}; }
  // Directs the next message, whichever function sends it, to `offset` in the output that the peer has advertised for
  // `call`. That output is `output_bytes` long. At the receiver, the message is then `delivered`. Returns false if
  // the peer has advertised no such output, or its advertisement has not arrived yet: the message then goes into a
  // slot. A message shorter than min_aimed_bytes() always goes into a slot.
  virtual bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) {
    return static_cast<void>(call), static_cast<void>(output_bytes), static_cast<void>(offset), false;
  }
  // Sends bytes of a point-to-point transfer like send_pinned(). Call it only after aim() has returned true. One
  // message takes as many bytes as the network allows, which can be more than slot_bytes. Returns the number of bytes
  // sent. If that is 0, the network could not send in this way, and the effect of aim() remains for a call of
  // send_pinned().
  virtual std::uint64_t send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                                   const CallTag& tag) {
    return static_cast<void>(whole), static_cast<void>(data), static_cast<void>(bytes), static_cast<void>(tag), 0;
  }
  virtual void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) = 0;
  virtual void send_delivered(std::uint64_t bytes, const CallTag& tag) = 0;
  // True if a reply can be sent. `over` is a message of the peer in a slot that this rank has overwritten with the
  // bytes of the reply. The peer must not use that slot again before it has released the reply.
  virtual bool can_reply() const { return false; }
  virtual void send_reply(const Message& over, const CallTag& tag) { static_cast<void>(over), static_cast<void>(tag); }
  virtual bool drained() = 0;  // The receiver has released everything that was sent, or has its own copy.
  // The operating system or the receiver has everything that was sent, so this process need not do anything more for
  // it.
  virtual bool handed_over() = 0;
  // True if handing over can take time. In that case a call ends only when handed_over() is true.
  virtual bool lingers() const { return sends_from_memory(); }
};

// The result of ReceiveConnection::arrival(). kDamaged: bits of a message have changed in transit. kUnmapped: the
// message is in memory that this rank could not map (see MemoryLoss). A connection never returns the last three; the
// layers above use them for shared memory without messages: a peer has withdrawn the memory that it advertised; the
// memory that a rank named cannot be read or written; the operating system does not permit this rank to access the
// memory of the peer.
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

// The receiving end of a connection. Use it in the thread that drives progress.
class ReceiveConnection {
 public:
  virtual ~ReceiveConnection() = default;
  // Checks whether the next message of `call` has arrived, and drops messages of earlier calls. kMismatch: the peer
  // entered a different call with the same sequence number; mismatched_tag() returns the tag of the peer. kCorrupt: a
  // correct peer never sends such a message. `place`: the memory where the caller would store this message unchanged.
  // If wants_place() is true, the connection may write the message there and then returns kDelivered. It writes only
  // inside this call, or inside a later call of arrival() with the same `call` and `place`, and never between these
  // calls. If the length of the message differs from that of `place`, the caller fetches the message with front().
  virtual Arrival arrival(const CallTag& call, std::span<std::byte> place = {}) = 0;
  virtual bool wants_place() const { return false; }
  virtual std::uint64_t min_aimed_bytes() const { return ~std::uint64_t{0}; }  // see SendConnection
  // Advertises `output` to the peer after this rank has entered `call`. From now until withdraw_output() the peer may
  // write messages of the call directly to their positions in `output`. Returns false if the network cannot do that
  // for this connection, or cannot do it now; nothing is advertised then.
  virtual bool advertise_output(const CallTag& call, std::span<std::byte> output) {
    return static_cast<void>(call), static_cast<void>(output), false;
  }
  // Asks the peer to stop writing into the output, before a call is given up. Returns true when the peer has
  // confirmed that it will not write there any more, and none of its writes is in transit.
  virtual bool revoke_output() { return true; }
  // Ends the advertisement, because the call has ended, or was given up (`gave_up`), in which case messages may be
  // missing. When this function returns, no writes to the output are possible any more. If the output was not revoked
  // before, a peer that still tries to write can break the connection.
  virtual void withdraw_output(bool gave_up) { static_cast<void>(gave_up); }
  // For a peer that has left or is lost: messages that it sent before may still be in transit on this connection.
  virtual bool may_bring_more() { return false; }
  virtual CallTag mismatched_tag() const = 0;
  virtual Message front() = 0;  // Call it after arrival() has returned kMessage. The result is valid until release().
  virtual void release() = 0;
  // Call it after arrival() has returned kDamaged. Describes which message was damaged, between which ranks, and how.
  virtual std::string damage() const { return {}; }
  // Call it after arrival() has returned kUnmapped. Describes why the memory could not be mapped.
  virtual MemoryLoss loss() const { return {}; }
};

// How the call of one rank failed. Peers can read it.
struct CallFailure {
  ErrorCode code = ErrorCode::kSystem;
  std::int32_t culprit = -1;  // rank that caused the failure, or -1
  // For kMismatch: the argument that differs. For kSystem: the resource that the culprit lacked.
  CallArgument argument = CallArgument::kNone;

  bool operator==(const CallFailure&) const = default;
};

enum class PeerLife : std::uint8_t {
  kLive,     // takes part
  kLeft,     // has destroyed its communicator
  kAborted,  // has called abort()
  kLost,     // Its process ended without a close notification, or its connections did. peer_loss() tells the two apart.
  kUnreachable,  // messages cannot pass in at least one direction; peer_trouble() returns the reason
};

// The state of a peer, from its status board and its connections. It is a snapshot: the peer continues to run.
// `ended` and `cut` are set as follows:
//
//   life     ended  cut
//   kLive    no     no   There is no sign that the peer does not take part.
//   kLive    no     yes  A connection to it ended without a close notification. The cause is being determined.
//   kLive    yes    no   It accepts no connection: its process has ended, possibly after it left properly.
//   kLost    yes    no   The same, and this rank still waits for connections from it.
//   kLost    no     no   Its process or its connections ended without a close notification.
//   others   no     no
struct PeerStatus {
  PeerLife life = PeerLife::kLive;
  std::uint64_t entered = 0;  // sequence number of the last call that it entered; 0 if it entered none
  std::uint64_t left = 0;     // sequence number of the last call that it left, successfully or not
  bool ended = false;
  bool cut = false;
};

// Shared memory of this rank that peers can map. It was allocated as such, or it was private memory that has been
// converted (adopted).
class Window {
 public:
  virtual ~Window() = default;  // ends the registration; adopted memory becomes private again
  virtual std::byte* data() const = 0;
  virtual std::size_t size() const = 0;
};

// ShmMailboxes: what one rank writes for all others to read, in a call that is too short for messages. Only the owner
// writes its mailboxes (the exception is `claimed`), and all ranks of the communicator read them. Each rank has
// kMailboxes mailboxes and uses them in turn, so that a root can run ahead of the ranks that it serves. A mailbox
// consists of a mark and a payload buffer for payloads that do not fit into the mark. The marks of all ranks are next
// to each other, so that a reader touches few pages and cache lines. There are only a few long payload buffers, so
// that they stay in caches.
//
// A store to `number` publishes everything that was written before it. After reading a payload, a reader must check
// `number` again, because a rank that has given the call up may already have written the next value.
inline constexpr std::size_t kMailboxes = 8;
inline constexpr std::size_t kMailboxBytes = 8 * 1024;
inline constexpr std::size_t kLongPayloadBuffers = 2;
inline constexpr std::size_t kLongPayloadBytes = 64 * 1024;
struct alignas(128) MailboxMark {  // two cache lines, because processors fetch the second one together with the first
  std::atomic<std::uint64_t> number;  // sequence number of the call; 0: nothing written yet, or the owner is writing
  std::atomic<std::uint64_t> digest;  // digest of the tag of the call
  std::array<std::byte, 48> payload;  // the whole payload if it fits
  // The second cache line is written by the rank that executes the owner's share of a call for all ranks. That is
  // usually the owner.
  alignas(64) std::atomic<std::uint64_t> claimed;  // the last call in which a rank has claimed that share
  std::atomic<std::uint64_t> finished;             // the last call in which that share was finished
  std::atomic<std::uint64_t> steps;                // number of steps of long shares, never reset
  std::atomic<std::uint32_t> claimer;  // the rank that claimed the share; used in the message if a wait times out
};
static_assert(offsetof(MailboxMark, payload) + sizeof(MailboxMark::payload) == 64);

struct ShmMailboxes {
  std::uint32_t ranks = 0;                                          // 0: there are no mailboxes
  std::array<MailboxMark*, kMailboxes> marks{};                     // indexed by rank
  std::array<std::vector<std::byte*>, kMailboxes> payload_buffers;  // indexed by rank; kMailboxBytes each
  std::array<std::vector<std::byte*>, kLongPayloadBuffers>
      long_payload_buffers;  // indexed by rank; kLongPayloadBytes each
};

// How the ranks of a communicator access memory of each other that is not registered. It is decided during set-up and
// is the same on all ranks.
enum class Attachment : std::uint8_t {
  kNone,       // not possible: other machine, or forbidden by the operating system
  kLongCalls,  // by system calls that copy, but only for long calls
  kCalls,      // by system calls that copy, for all calls
  kPointers,   // by pointers, because all ranks are threads of one process
};

// The result of read_memory() and write_memory().
enum class MemoryAccess : std::uint8_t {
  kDone,
  kGone,        // the process of the peer has ended
  kRefused,     // part of the range is not memory of the peer, or may not be written
  kOwnRefused,  // the same problem with this rank's memory
  kForbidden,   // the operating system does not permit this rank any such access
};

using MemoryReleaseCallback = std::function<void(const void* data, std::size_t bytes)>;

class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  virtual bool shares_memory() const { return true; }  // the ranks of one machine
  virtual std::uint32_t slots() const = 0;             // messages that a connection can hold
  virtual std::uint64_t slot_bytes() const = 0;        // length of the longest message, except for send_aimed()
  virtual std::uint32_t lanes() const = 0;             // lanes for each pair of ranks

  // Opens this rank's end of a connection, once for each (peer, lane). The peer opens its own end when it needs it.
  // Requires peer != this rank and lane < lanes().
  virtual Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) = 0;
  virtual Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) = 0;

  virtual Doorbell& doorbell() = 0;  // rung whenever a peer did something that this rank may wait for

  // The status board. enter_call() offers this rank's output to peers that store directly into it (`output` with
  // window 0: no offer). leave_call() withdraws the offer. If the call failed, it also records the failure and
  // informs all peers.
  virtual void enter_call(const CallTag& tag, const WindowRef& output) = 0;
  virtual void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) = 0;
  // A snapshot of the state of the peer; see PeerStatus.
  virtual PeerStatus peer_status(std::uint32_t peer) = 0;
  // The tag with which the peer entered call `sequence`. Empty before the peer has entered that call, and empty again
  // a few calls later, because a board only remembers the last few calls.
  virtual std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) = 0;
  // How call `sequence` failed on the peer. Empty if it has not failed, or if the failure is too old for the board.
  virtual std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) = 0;

  // True once `peer` has left call `sequence`, successfully or not. If a peer has published a message in a call and
  // left the call before that message was released, then the peer has given the call up. Data read from the message
  // after that time can be anything.
  virtual bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) = 0;

  // The address at which this rank can store into the output of `peer` for call `sequence`. Null if the peer does not
  // offer its output. Empty if that is not known yet, because the peer has not entered the call or its window has not
  // arrived: ask again later. `bytes`: required length of the output.
  virtual std::optional<std::byte*> peer_output(std::uint32_t peer, std::uint64_t sequence, std::uint64_t bytes) = 0;

  // The window that contains all of [data, data+bytes); window 0 if there is none. Thread-safe.
  virtual WindowRef find_window(const void* data, std::size_t bytes) = 0;
  virtual Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) = 0;
  virtual Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) = 0;
  // Returns a callback that the owner of a window must call before the memory is freed or its pages are replaced. The
  // transport then drops all that it has cached about that memory. The transport must detect this by itself for other
  // memory. The callback may be called from any thread, and even after the transport was destroyed. An empty callback
  // means that the transport caches nothing.
  virtual MemoryReleaseCallback memory_release_callback() { return {}; }

  // The mailboxes of all ranks. Null if not all ranks of the communicator can access each other's memory. Peers write
  // the contents, so do not trust them.
  virtual const ShmMailboxes* mailboxes() const { return nullptr; }
  // Wakes the sleeping peers that wait for the mailbox of `rank`. Call it after the mailbox was written (`number` or
  // `finished`, with seq_cst).
  virtual void ring_sleepers(std::uint32_t /*rank*/) {}
  // The address at which this rank can read and write `place` in registered memory of `peer`. Null if fewer than
  // `bytes` bytes follow there in the window. Empty if the window has not arrived yet: ask again later. `which` is 0
  // or 1: the transport keeps one mapping of the peer for each value, until the next call with the same value. Call
  // it in the thread that drives progress.
  virtual std::optional<std::byte*> peer_memory(std::uint32_t /*peer*/, std::size_t /*which*/,
                                                const WindowRef& /*place*/, std::uint64_t /*bytes*/) {
    return nullptr;
  }
  // The reason why `window` of the peer could not be mapped, if it could not. Call it after peer_memory() has
  // returned empty. Before a loss is reported, the peer is asked to share the window again. A loss is reported once
  // in a call.
  virtual std::optional<MemoryLoss> take_memory_loss(std::uint32_t /*peer*/, std::uint32_t /*window*/) {
    return std::nullopt;
  }
  virtual Attachment attachment() const { return Attachment::kNone; }
  // read_memory() copies `bytes` bytes from memory of `peer` to `to`. write_memory() copies them from `from` to memory
  // of `peer`. `address` is in the address space of the peer. Only available if attachment() is kLongCalls or kCalls.
  virtual MemoryAccess read_memory(std::uint32_t /*peer*/, std::uint64_t /*address*/, std::byte* /*to*/,
                                   std::size_t /*bytes*/) {
    return MemoryAccess::kRefused;
  }
  virtual MemoryAccess write_memory(std::uint32_t /*peer*/, std::uint64_t /*address*/, const std::byte* /*from*/,
                                    std::size_t /*bytes*/) {
    return MemoryAccess::kRefused;
  }
  // Announces which rank's mailbox this rank waits for, so that writers of other mailboxes do not wake it
  // unnecessarily. kAnyRank: it waits for all mailboxes.
  static constexpr std::uint32_t kAnyRank = ~std::uint32_t{0};
  virtual void await_mailbox(std::uint32_t /*rank*/) {}

  // Sends and receives the control data that is queued between ranks apart from messages. A waiting rank calls it
  // from time to time.
  virtual void pump() = 0;

  // Passes queued messages to the operating system, as far as it accepts them now. Returns true if no message remains
  // in this process. Called after every round of sends and while the rank waits.
  virtual bool flush() { return true; }

  // Problems with connections, for the message of a wait that timed out. Empty if there are none.
  virtual std::string troubles() { return {}; }
  // The device, port and queue pair that transfer messages to and from the peer. Empty if the transport has no such
  // details.
  virtual std::string peer_path(std::uint32_t /*peer*/) { return {}; }
  // For a kUnreachable peer: the device, port and queue pair with the error that they reported, or how the connection
  // ended.
  virtual std::string peer_trouble(std::uint32_t /*peer*/) { return {}; }
  // For a kLost peer: how its connection ended, if that does not prove that its process has ended. Empty if the
  // process has ended.
  virtual std::string peer_loss(std::uint32_t /*peer*/) { return {}; }

  // Informs all peers that this rank makes no more calls. The driver calls it once, and only the destructor may
  // follow.
  virtual void announce_leave() = 0;

  // Informs all peers that this rank aborts. Thread-safe.
  virtual void announce_abort() = 0;
};

}  // namespace tutti
