// Transport: how the ranks of one communicator exchange messages and read each other's status boards. It knows
// nothing about plans. Each communicator of a rank has its own Transport. Only one thread at a time may use it, namely
// the thread that drives the rank's progress. Exceptions are functions that are documented as thread-safe or as usable
// by any thread, and those that return properties of the transport: name(), shares_memory(), slots(), slot_bytes(),
// lanes(), mailboxes() and attachment().
//
// A connection is a directed FIFO of messages with flow control (by credits, or by TCP). It is identified by (sender,
// receiver, lane). A message transfers one value. The Carrier of each message determines how the value is transferred:
//
//   slot        The receiver finds the value in a slot, which is a buffer of the connection.
//   published   The value is in registered memory of the sender. The receiver reads it there, in place, until the
//               receiver releases the message.
//   delivered   The value is already stored at its destination in the memory of the receiver.
//   replied     The sender received an earlier message from this receiver in a slot, and overwrote that slot with the
//               value. The value is still in that slot, which belongs to the connection in the opposite direction
//               (same two ranks and same lane).
//
// Every message carries a CallTag, which identifies its call or point-to-point transfer. If a call failed, some of its
// messages can remain in a connection. The receiver drops them when it waits for a message of a later call.
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

// The lane of point-to-point sends and receives, and of collectives that run as such (for example all_to_all_v). Plans
// use only lower lanes. On this lane the sequence number in a tag counts the transfers from one rank to another and not
// the collectives, so it does not show which collective a rank has reached.
inline constexpr std::uint16_t kPointToPointLane = 7;

// A location in registered memory, in the form in which the owner sends it to peers. window 0 means "not registered".
struct WindowRef {
  std::uint32_t window = 0;
  std::uint64_t offset = 0;  // in bytes, from the start of the window; SimTransport stores an address instead

  bool operator==(const WindowRef&) const = default;
};

// A received message. Valid until it is released.
struct Message {
  Carrier carrier = Carrier::kSlot;
  const std::byte* data = nullptr;  // null if the message was delivered
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;  // only for kSlot: the index of the slot, which send_reply() needs
  // Only for kDelivered: the offset, in bytes, at which the peer has written the value into the output that this rank
  // had advertised. The sender reported the offset, and the transport has checked that the value is within the
  // output. Empty if the value was not written into an advertised output.
  std::optional<std::uint64_t> output_offset{};
};

// The sending end of a connection. Use it in the thread that drives progress.
class SendConnection {
 public:
  virtual ~SendConnection() = default;
  // True if one more message can be sent now: the connection has the credit and the space for it.
  virtual bool ready() = 0;
  virtual std::byte* slot() = 0;  // Buffer for the next message, slot_bytes long. Call it only if ready().
  virtual void send_slot(std::uint64_t bytes, const CallTag& tag) = 0;
  // True if send_from() costs less than writing into a slot and sending that slot.
  virtual bool sends_from_memory() const { return false; }
  // Sends the bytes at `data`. The caller may change them as soon as this function returns.
  virtual void send_from(const std::byte* data, std::uint64_t bytes, const CallTag& tag) {
    if (bytes > 0) std::memcpy(slot(), data, bytes);
    send_slot(bytes, tag);
  }
  // Like send_from(), but the caller promises not to change the bytes until drained(), handed_over() or pins_done()
  // returns true. So the transport, for example a network card, may read them later. `whole`: a memory range that
  // contains `data`. The caller may send more of that range later, so the transport may register the whole range at
  // once.
  virtual void send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag) {
    static_cast<void>(whole), send_from(data, bytes, tag);
  }
  // The length, in bytes, of the shortest message that the network may write directly into an output that the peer
  // has advertised. It is greater than any possible length if the network cannot write into outputs of the peer.
  virtual std::uint64_t min_aimed_bytes() const { return ~std::uint64_t{0}; }
  // Directs the next message on this connection, whichever function except send_delivered() sends it, to the byte
  // `offset` in the output that the peer has advertised for `call`. `output_bytes`: the length that the sender expects
  // of that output. The message then arrives as `delivered`, unless it is shorter than min_aimed_bytes() or does not
  // fit into the output: such a message goes into a slot. Returns false, and directs nothing, if the peer has
  // advertised no such output or has revoked it, if its advertisement has not arrived yet, if `offset` is beyond the
  // end of the output, or if the network cannot write into outputs.
  virtual bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) {
    return static_cast<void>(call), static_cast<void>(output_bytes), static_cast<void>(offset), false;
  }
  // Sends one message of a point-to-point transfer. The bytes must not change, as for send_pinned(). Call it only after
  // aim() has returned true. The transport determines how many of the `bytes` bytes the message takes, which can be
  // more than slot_bytes, and returns that number. 0 means that nothing was sent; the caller then calls send_pinned(),
  // to which the preceding aim() still applies.
  virtual std::uint64_t send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                                   const CallTag& tag) {
    return static_cast<void>(whole), static_cast<void>(data), static_cast<void>(bytes), static_cast<void>(tag), 0;
  }
  // True if no device reads memory that was passed to send_pinned() or send_aimed() any more.
  virtual bool pins_done() { return true; }
  // Call it when a send was given up, before its memory is used for something else. When it returns, no device reads
  // that memory any more. If pins_done() was false, this ends the connection: messages that have not arrived are lost,
  // and the peer becomes unreachable.
  virtual void drop_pins() {}
  virtual void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) = 0;
  virtual void send_delivered(std::uint64_t bytes, const CallTag& tag) = 0;
  // can_reply(): whether this connection supports replies (Carrier::kReplied). send_reply() sends one: `over` is a
  // message that this rank has received from the peer in a slot, and has overwritten with the reply. The peer must not
  // use that slot for a new message before it has released the reply.
  virtual bool can_reply() const { return false; }
  virtual void send_reply(const Message& over, const CallTag& tag) { static_cast<void>(over), static_cast<void>(tag); }
  // True if no rank and no device reads memory of this rank, other than slots, for an earlier message any more: for
  // example because the receiver has released every message, because the operating system or the network library has
  // copied or sent all the bytes, or because the connection has ended.
  virtual bool drained() = 0;
  // True if every message that was sent is in shared memory, or was passed to the operating system, the network device
  // or the receiver. This process then need not do anything more for them. Stays false if the connection broke before
  // that, but can be true if the peer has left properly or this transport has ended.
  virtual bool handed_over() = 0;
  // True if handed_over() can be false after send_slot() or send_from(). In that case a collective that uses the
  // connection does not succeed before handed_over() is true. After send_pinned() and send_published(), calls wait for
  // drained() or handed_over() anyway.
  virtual bool lingers() const { return sends_from_memory(); }
};

// The result of ReceiveConnection::arrival(), which returns one of the first six.
//
// kNothing: no message of the call can be read now, for example because none has arrived, because it is incomplete, or
// because the peer already sends messages of a later call. kMessage: front() describes the next message. kMismatch: the
// message belongs to another call with the same sequence number. kCorrupt: a correct peer never sends such a message.
// kDamaged: the checksum shows that the message has changed in transit, or that it is not the expected one. kUnmapped:
// the message is in memory that this rank could not map (see MemoryLoss).
//
// The layers above use the other three for memory that this rank reads or writes directly. kWithdrawn: a peer has
// left the call before this rank had finished using the peer's memory. kUnreachable: memory that a peer or this rank
// has named for the call cannot be read or written. kForbidden: the operating system does not permit this rank to
// access the memory of the peer.
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
  // entered a different call with the same sequence number; mismatched_tag() returns the tag of the peer.
  //
  // `place`: the memory into which the caller would copy this message unchanged; empty if the caller has no such
  // memory. If wants_place() is true and the message is as long as `place`, the connection may store the message
  // there. If it has done so, the carrier of front() is kDelivered. The connection writes to `place` only inside this
  // call, or inside a later call of arrival() with the same `call` and `place`, and never between these calls. A later
  // call of arrival() with the same `call` and another `place` may read the part of the message that is already in the
  // old place.
  virtual Arrival arrival(const CallTag& call, std::span<std::byte> place = {}) = 0;
  virtual bool wants_place() const { return false; }
  // Call it before the memory that was the `place` of an unfinished message is used for something else, if a later
  // arrival() may have the same `call` again. The connection keeps the part of the message that it has stored there in
  // memory of its own, so that the message stays whole. It does not use the place any more.
  virtual void withdraw_place() {}
  // Like SendConnection::min_aimed_bytes(), but for messages from the peer into outputs of this rank.
  virtual std::uint64_t min_aimed_bytes() const { return ~std::uint64_t{0}; }
  // Advertises `output` to the peer for messages of `call`, which this rank has begun. From then until
  // withdraw_output() the peer may write messages of the call directly to their positions in `output`. Returns false,
  // and advertises nothing, if the network cannot do that for this connection, or cannot do it now.
  virtual bool advertise_output(const CallTag& call, std::span<std::byte> output) {
    return static_cast<void>(call), static_cast<void>(output), false;
  }
  // Asks the peer to stop writing into the advertised output, because this rank is about to give the call up. Call it
  // again until it returns true: then the peer has confirmed that it will not write there any more, and none of its
  // writes is in transit. Also returns true if nothing is advertised, or if the connection has broken.
  virtual bool revoke_output() { return true; }
  // Ends the advertisement, because the call has ended, or because it was given up (`gave_up`); in the second case
  // messages may be missing. After a call that has ended, a correct peer does not write to the output any more. After a
  // call that was given up, the network rejects such writes, unless another call still uses the registration of that
  // memory. If the output was not revoked before, a peer that still tries to write can break the connection.
  virtual void withdraw_output(bool gave_up) { static_cast<void>(gave_up); }
  // Call it if the peer has left or is lost. True if messages that the peer sent before it left or was lost may still
  // be in transit on this connection. In that case the caller should go on polling the connection.
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
  std::int32_t culprit = -1;  // the rank that caused the failure; -1: unknown, or no single rank
  // For kMismatch: the argument that differs. For kSystem: the resource or the permission that the culprit lacked.
  // kNone if it is not known, and for all other codes.
  CallArgument argument = CallArgument::kNone;

  bool operator==(const CallFailure&) const = default;
};

enum class PeerLife : std::uint8_t {
  kLive,     // Nothing proves yet that another state applies; PeerStatus::ended and cut are first signs of that.
  kLeft,     // It makes no more calls: its communicator was finalized or destroyed.
  kAborted,  // abort() was called on it, or a failure has ended its communicator.
  // Its process ended without a close notification, or its connections did, although its process may still run.
  // If the process may still run, peer_loss() describes how the connections ended.
  kLost,
  // Messages cannot pass in at least one direction, data on a connection was altered, or a connection was refused.
  // peer_trouble() returns the reason.
  kUnreachable,
};

// The state of a peer, as this rank knows it from the status board of the peer and from the connections to it. It is
// a snapshot: the peer continues to run. `ended` and `cut` are set only by transports over a network:
//
//   life     ended  cut
//   kLive    no     no   The peer seems to take part, or it has ended and this rank still reads its last data.
//   kLive    no     yes  A connection to the peer ended without a close notification. The cause is being determined.
//   kLive    yes    no   The peer did not accept, or has ended, a connection of this rank. Its process has probably
//                        ended, possibly after it left properly.
//   kLost    yes    no   As in the line above, and this rank still waits for a connection from the peer.
//   kLost    no     no   The process or the connections of the peer ended without a close notification.
//   kLeft, kAborted, kUnreachable: both are false.
struct PeerStatus {
  PeerLife life = PeerLife::kLive;
  std::uint64_t entered = 0;  // sequence number of the last call that the peer entered; 0 if it entered none
  std::uint64_t left = 0;     // sequence number of the last call that the peer left, successfully or not; 0 if none
  // Whether the two numbers above can be out of date, because the peer sends them only at certain times: for example
  // after it has waited in a call for some time, when it leaves such a call, and when a call has failed.
  bool is_sent = false;
  // Only if is_sent: the value of `entered` in the last state that the peer sent on a control connection. Its other
  // messages can show that it has entered a later call. If `reported` is greater than `left`, the peer was waiting in
  // call number `reported` when this rank last heard of it.
  std::uint64_t reported = 0;
  std::uint64_t device_calls = 0;  // see Transport::publish_device_calls(); 0 if the transport does not publish them
  bool ended = false;
  bool cut = false;
};

// Memory of this rank that is registered with the communicator. It was allocated by allocate_window(), or it is memory
// of the user that adopt_window() has registered. (ShmTransport also makes windows of the segments of the shared heap.)
// Peers that share memory with this rank can map it.
class Window {
 public:
  virtual ~Window() = default;  // Ends the registration. If adopt_window() made the memory shared, it is private again.
  virtual std::byte* data() const = 0;
  virtual std::size_t size() const = 0;
};

// ShmMailboxes: small areas of shared memory in which a rank publishes short values, or the addresses of its buffers,
// to all other ranks without sending messages. All ranks of the communicator can read them. Each rank has kMailboxes
// mailboxes and uses one after the other, so that a root can run ahead of the ranks that it serves. A mailbox
// consists of a mark and of a payload buffer for payloads that do not fit into the mark. The marks of all ranks for one
// mailbox are next to each other, so that a reader touches few pages and cache lines. Each rank has only
// kLongPayloadBuffers long payload buffers, so that they stay in caches. Only the owner writes its marks and buffers,
// with two exceptions: other ranks also write the second cache line of a mark (see MailboxMark), and a rank that does
// the share of another rank stores the results in the long payload buffer of that rank.
//
// The store to MailboxMark::number publishes everything that the owner wrote before. After reading a payload, a
// reader must check `number` again, because a rank that has given the call up may already have written the next
// value.
inline constexpr std::size_t kMailboxes = 8;
inline constexpr std::size_t kMailboxBytes = 8 * 1024;
inline constexpr std::size_t kLongPayloadBuffers = 2;
inline constexpr std::size_t kLongPayloadBytes = 64 * 1024;
struct alignas(128) MailboxMark {  // two cache lines, because many processors fetch them together
  // Sequence number of the call; 0: nothing was written yet, the owner is writing, or it has withdrawn the contents.
  std::atomic<std::uint64_t> number;
  // A hash of the tag of the call, by which readers detect that a rank has entered another call.
  std::atomic<std::uint64_t> digest;
  std::array<std::byte, 48> payload;  // the payload, if it fits here; otherwise it is in a payload buffer
  // The second cache line is for calls in which each rank does a share of the work for all ranks. The owner of the
  // mark normally does its share, but any other rank may claim that share and do it instead. The rank that does the
  // share of the owner writes this line. `claimed`: sequence number of the last call in which a rank (possibly the
  // owner) claimed that share.
  alignas(64) std::atomic<std::uint64_t> claimed;
  std::atomic<std::uint64_t> finished;  // sequence number of the last call in which that share was finished
  // Number of steps done in long shares, counted over all calls; waiting ranks see progress by it.
  std::atomic<std::uint64_t> steps;
  // The rank that claimed the share; named in the message if a wait for the share times out.
  std::atomic<std::uint32_t> claimer;
};
static_assert(offsetof(MailboxMark, payload) + sizeof(MailboxMark::payload) == 64);

struct ShmMailboxes {
  std::uint32_t ranks = 0;                       // number of ranks
  std::array<MailboxMark*, kMailboxes> marks{};  // marks[mailbox][rank]
  // payload_buffers[mailbox][rank], each kMailboxBytes long.
  std::array<std::vector<std::byte*>, kMailboxes> payload_buffers;
  std::array<std::vector<std::byte*>, kLongPayloadBuffers>
      long_payload_buffers;  // long_payload_buffers[buffer][rank], each kLongPayloadBytes long
};

// How the ranks of a communicator access memory of each other that is not registered. All ranks agree on one value
// during set-up.
enum class Attachment : std::uint8_t {
  kNone,  // not at all, for example because the operating system or TUTTI_ATTACH forbids it, or messages have checksums
  // By system calls that copy between processes, but only in calls for which that is faster, see uses_attached_memory()
  // in executor/single_copy.h.
  kLongCalls,
  kCalls,     // by system calls that copy between processes, in calls of any length
  kPointers,  // by pointers, because all ranks are threads of one process
};

// The result of read_memory() and write_memory().
enum class MemoryAccess : std::uint8_t {
  kDone,
  kGone,        // the process of the peer has ended, or has closed its connection to this rank
  kRefused,     // part of the range is not memory of the peer, or this rank may not access it in that way
  kOwnRefused,  // the buffer of this rank is not valid memory, or may not be accessed in that way
  kForbidden,   // the access failed for another reason, normally because this rank lacks the permission for it
};

using MemoryReleaseCallback = std::function<void(const void* data, std::size_t bytes)>;

class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  // Whether the ranks of one machine share memory through this transport.
  virtual bool shares_memory() const { return true; }
  // A connection can hold at least this number of messages that were sent but not released. A network may hold more.
  virtual std::uint32_t slots() const = 0;
  // Length of the longest message in bytes; only send_aimed() can send longer ones.
  virtual std::uint64_t slot_bytes() const = 0;
  virtual std::uint32_t lanes() const = 0;  // number of lanes between each pair of ranks

  // open_send() and open_receive() open this rank's end of a connection. Call each of them at most once for each (peer,
  // lane). The peer opens its own end when it needs it. Requires peer != this rank and lane < lanes().
  virtual Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) = 0;
  virtual Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) = 0;

  // The doorbell on which this rank sleeps. For example, it is rung when a message or a credit arrives, when a mailbox
  // for which this rank waits was written, and when a peer reports a failure. Not every change of a status board rings
  // it, and the death of a peer need not, so limit the time of each sleep.
  virtual Doorbell& doorbell() = 0;

  // These two functions record the start and the end of a call on the status board of this rank. enter_call()
  // publishes the tag, and offers this rank's output to peers that store directly into it (`output` with window 0: no
  // offer). leave_call() withdraws the offer. If `failure` is set, leave_call() also records the failure and informs
  // all peers of it. Over a network, peers receive all other information later, or not at all (transports/tcp/board.h).
  virtual void enter_call(const CallTag& tag, const WindowRef& output) = 0;
  virtual void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) = 0;
  // Publishes the number of collective calls that this rank has submitted to its GPU, so that peers can name late
  // ranks. Any thread may call it. Only transports whose peer_status() any thread may call (shared memory) publish it.
  virtual void publish_device_calls(std::uint64_t /*calls*/) {}
  // A snapshot of the state of the peer; see PeerStatus. Any thread may call it if the transport is ShmTransport.
  virtual PeerStatus peer_status(std::uint32_t peer) = 0;
  // The tag with which the peer entered call `sequence`. Empty as long as this rank does not know that the peer has
  // entered that call, and possibly again some calls later, because a board remembers only the last calls.
  virtual std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) = 0;
  // How call `sequence` failed on the peer. Empty if it has not failed, if this rank does not know of the failure yet,
  // or if the failure is too old for the board.
  virtual std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) = 0;

  // True once this rank knows that `peer` has left call `sequence`, successfully or not. If a peer has published a
  // message in a call and left the call before that message was released, then the peer has given the call up. Data
  // read from the message after that time can be anything.
  virtual bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) = 0;

  // The address at which this rank can store into the output of `peer` for call `sequence`. Null if this transport
  // cannot map memory of the peer, if the peer does not offer its output, if the offered memory is shorter than `bytes`
  // or could not be mapped, or if the peer has left the call. Empty if that is not known yet, because the peer has not
  // entered the call or its window has not arrived: ask again later.
  virtual std::optional<std::byte*> peer_output(std::uint32_t peer, std::uint64_t sequence, std::uint64_t bytes) = 0;

  // The window of this rank that contains all of [data, data+bytes), with the offset of `data`. The result has window 0
  // if there is no such window, or if peers cannot use it. Thread-safe.
  virtual WindowRef find_window(const void* data, std::size_t bytes) = 0;
  // allocate_window() and adopt_window() are thread-safe.
  virtual Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) = 0;
  virtual Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) = 0;
  // Returns a callback that must be called before the memory of a window is freed or its pages are replaced. The
  // callback makes the transport drop all that it has cached about that memory. Memory outside of windows needs no
  // such call, because the transport detects by itself when that memory is freed. The callback may be called from any
  // thread, and even after the transport was destroyed. An empty callback means that no such call is needed, because
  // the transport caches nothing, or because its windows make the call themselves.
  virtual MemoryReleaseCallback memory_release_callback() { return {}; }

  // The mailboxes of all ranks. Null if there are none, for example because not all ranks share memory, or because
  // messages have checksums. The contents come from peers, so check them before use.
  virtual const ShmMailboxes* mailboxes() const { return nullptr; }
  // Wakes the sleeping peers that wait for the mailbox of `rank`, or for all mailboxes. Call it after
  // MailboxMark::number or MailboxMark::finished of that mailbox was stored with memory_order_seq_cst.
  virtual void ring_sleepers(std::uint32_t /*rank*/) {}
  // The address at which this rank can read and write `place` in registered memory of `peer`. Null if the window ends
  // before `place` + `bytes`, or if this transport cannot map memory of peers. Empty if this rank has no mapping of the
  // window: it has not arrived yet, so ask again later, or it was lost (see take_memory_loss()) or withdrawn. `which`
  // is 0 or 1, for example for the input and the output of the peer: the transport keeps the last mapping of the peer
  // for each of the two values. Call it in the thread that drives progress.
  virtual std::optional<std::byte*> peer_memory(std::uint32_t /*peer*/, std::size_t /*which*/,
                                                const WindowRef& /*place*/, std::uint64_t /*bytes*/) {
    return nullptr;
  }
  // The reason why this rank could not map `window` of the peer. Empty if no loss is known, or while the peer is
  // asked to share the window again, which normally happens before a loss is reported. Call it after peer_memory() has
  // returned empty. Each loss is reported once.
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
  // Argument of await_mailbox(): this rank waits for all mailboxes, so every writer of a mailbox wakes it.
  static constexpr std::uint32_t kAnyRank = ~std::uint32_t{0};
  // Records for which rank's mailbox this rank is going to wait, so that writers of other mailboxes do not wake it.
  virtual void await_mailbox(std::uint32_t /*rank*/) {}

  // Sends and receives queued control data, for example status boards and shared windows. Network transports may also
  // send and receive messages in it. A waiting rank calls it from time to time.
  virtual void pump() = 0;

  // Passes queued messages to the operating system or to the network library, as far as it accepts them now; with RDMA,
  // also processes completions. Returns true if no message is left in a queue of this transport. Called after every
  // attempt to continue a plan or an exchange of messages (but not after a probe for a message), so also while the rank
  // waits.
  virtual bool flush() { return true; }

  // Problems with connections, for the message of a wait that timed out. Empty if there are none.
  virtual std::string troubles() { return {}; }
  // The network devices of the connections to the peer, with verbs also the ports and queue pairs, as text for error
  // messages. Empty if the transport has no such details, or has none for this peer yet.
  virtual std::string peer_path(std::uint32_t /*peer*/) { return {}; }
  // For a kUnreachable peer: the reason, as text. With verbs it normally contains the device, the port, the queue pair
  // and the error that was reported.
  virtual std::string peer_trouble(std::uint32_t /*peer*/) { return {}; }
  // For a kLost peer: how its connection ended, if that does not prove that its process has ended. Otherwise empty.
  virtual std::string peer_loss(std::uint32_t /*peer*/) { return {}; }

  // For each rank, the number of TCP segments that the kernel of this rank has sent again so far on the connections of
  // this transport to that rank, open or closed. Empty for a rank to which no TCP connection was seen. Segments that
  // were sent again on a connection after the last call of this function and before its end are not counted. The span
  // is empty if the transport does not use TCP, and is valid until the next call. Makes a system call for each
  // connection, so do not call it in each operation.
  virtual std::span<const std::optional<std::uint64_t>> count_retransmissions() { return {}; }

  // Informs all peers that this rank makes no more calls. The engine calls it at most once, when no operation is in
  // progress, and starts no operation afterwards. If it was not called, the destructor informs the peers.
  virtual void announce_leave() = 0;

  // Informs all peers that this rank aborts. Thread-safe.
  virtual void announce_abort() = 0;
};

}  // namespace tutti
