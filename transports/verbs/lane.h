// VerbsLane: both directions between this rank and one peer on one lane, over one or several queue pairs. Each side
// has slots into which the other side writes. A message is an RDMA write with immediate data. If the message is
// long, it is divided into parts, usually one for each queue pair. The immediate data contains the index of the slot
// and the number of parts. A header precedes the payload in the slot.
//
// If the sender knows the position of a long message in the output of the receiver (see ReceiveTargets), the payload
// is written directly to that position, and only the header is written into the slot. The header follows the first
// part on the same queue pair, so its completion implies that the first part has arrived, too. A direct message of a
// point-to-point send can be longer than a slot.
//
// Memory is only read after the completion that announces it, or after the completion of a later write on the same
// reliable queue pair. Therefore neither the order in which the network delivers packets (adaptive routing) nor the
// order in which the PCIe bus writes them (relaxed ordering) matters.
//
// Each header also reports how many messages of the other direction have been released. That returns credits without
// an extra message; must_report_released() decides when an extra message is needed nevertheless.
//
// Use a lane in the thread that drives progress. It is shared by the connections of both directions and by the
// VerbsPath.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/call_tag.h"
#include "transports/rdma/handshake_channel.h"
#include "transports/verbs/rail.h"
#include "transports/verbs/receive_targets.h"

namespace tutti {

struct VerbsLaneOptions {
  std::uint32_t rank = 0;
  std::uint32_t peer = 0;
  std::uint16_t lane = 0;
  std::uint32_t slots = 4;
  std::uint32_t slot_bytes = 128 * 1024;
  std::uint32_t queue_pairs = 1;  // per rail
  bool advertises_outputs = true;
};

// Minimum length of a direct message, in bytes. A shorter message is faster if it is written into a slot and copied
// from there, because a direct message needs a second write for its header.
inline constexpr std::uint64_t kVerbsMinDirectBytes = 32 * 1024;
// Maximum length of a direct message, in bytes. At this length the cost per message is already negligible, and a
// longer message would delay the revocation of an output.
inline constexpr std::uint64_t kVerbsMaxDirectBytes = 4 << 20;

class VerbsLane final : public CompletionHandler {
 public:
  struct Header {  // precedes the payload in a slot
    CallTag tag;
    std::uint64_t bytes = 0;
    // number of the message, counted from 0; the lower 32 bits
    std::uint32_t number = 0;
    // messages of the other direction that the sender of this header has released so far; the lower 32 bits
    std::uint32_t released = 0;
    // offset in the output that the receiver advertises, in bytes; kInSlot if the payload follows this header
    std::uint64_t output_offset = ReceiveTargets::kInSlot;
    // descriptors of the receiver that the sender of this header has received so far; the lower 32 bits
    std::uint32_t seen = 0;
    std::uint32_t unused = 0;
  };
  static_assert(sizeof(Header) == 64);

  // One rail of the lane: a port of this rank and the port of the peer to which it is connected.
  struct Rail {
    VerbsRail* rail = nullptr;  // belongs to the VerbsPath, which outlives all uses by the lane
    VerbsPort remote;
  };

  // Creates the queue pairs, allocates and registers the memory, and sends the handshake. Errors: kSystem, with the
  // name of the device.
  static Result<std::shared_ptr<VerbsLane>> open(const VerbsLaneOptions& options, const std::vector<Rail>& rails,
                                                 HandshakeChannel& handshake_channel);
  ~VerbsLane() override;

  // Sending. Call the functions of this group only if ready() is true, except ready() itself and pins_done().
  bool ready();
  std::byte* slot();
  void send(std::uint64_t bytes, const CallTag& tag);  // sends the first bytes of slot()
  void send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes, const CallTag& tag);
  // True if the NIC has finished reading the memory of the user, which may change from now on.
  bool pins_done() const;
  // Directs the next message to `offset` in the output that the peer advertises for `call`, if the message is long
  // enough. Returns false if the peer does not advertise an output of that length, or its descriptor has not arrived
  // yet.
  bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset);
  // Call it after aim() has returned true. See SendConnection::send_aimed().
  std::uint64_t send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag);

  // Receiving.
  const Header* front();  // the next message; null if none has arrived
  const std::byte* payload() const;
  // True if the payload is in its slot, or within the output that this rank advertises.
  bool front_is_in_bounds() const;
  void release();
  bool corrupt() const { return corrupt_; }
  // Advertises `output`, so that the peer writes messages of the call directly into it. Returns false if it cannot
  // be advertised, for example because the memory cannot be registered.
  bool advertise_output(const CallTag& call, std::span<std::byte> output);
  // Asks the peer to stop writing into the advertised output. Returns true once the peer has acknowledged on every
  // queue pair, which implies that all its earlier writes have arrived.
  bool revoke_output();
  // Ends the advertisement, because the call has ended. `gave_up`: messages are missing, so the registration is
  // dropped in order that no NIC can write there later.
  void withdraw_output(bool gave_up);
  bool connected() const { return stage_ != Stage::kHandshakeSent && stage_ != Stage::kReadySent; }

  void note_reports();           // takes the failures of queue pairs that the device has reported
  void probe();                  // queries the state of the queue pairs from the device
  void receive_broken_report();  // takes the report of the peer that its end has broken
  bool peer_reported_broken() const { return peer_reported_broken_; }  // the peer has reported that its end has broken
  bool poll();  // processes completions; returns true if there were any
  void pump();  // poll(), and completes the handshake and sends releases that are due
  const VerbsLaneOptions& options() const { return options_; }
  const std::string& broken() const { return broken_; }  // the reason; empty if the lane works
  std::string describe_path() const;  // "rxe0 port 1, queue pair 17 (to queue pair 18 of rxe0 port 1 at rank 3)"
  bool idle() const;                  // all requests are completed, or the lane is broken or closed
  void ask_for_completion();          // requests a completion, so that idle() becomes true
  void close();                       // frees all resources, because the VerbsPath ends

 private:
  struct Pair {
    Rail rail;
    ibv_qp* pair = nullptr;
    // registration of the send half of memory_ with the device of this rail
    ibv_mr* source = nullptr;
    // registration of the receive half of memory_ with the device of this rail
    ibv_mr* target = nullptr;
    std::uint32_t most_inline = 0;    // longest inline message, in bytes
    std::uint32_t packet_number = 0;  // packet sequence number of the first packet
    std::uint32_t remote_number = 0;
    std::uint32_t remote_key = 0;     // remote key of the peer's slots
    std::uint64_t posted = 0;         // requests posted so far
    std::uint64_t done = 0;           // number of the last request that is known to be complete
    std::uint64_t last_signaled = 0;  // number of the last request that was posted with a completion (signaled)
    std::uint64_t last_pinned = 0;    // number of the last request that reads memory of the user
    // Registered memory that requests still use: the number of the request, and the registration.
    std::deque<std::pair<std::uint64_t, std::shared_ptr<RegistrationCache::Registration>>> uses;
  };
  struct GatherElement {  // one element of the gather list of a request
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint32_t key = 0;
  };

  struct RemoteAddress {  // the remote address that a request writes to
    std::uint64_t address = 0;
    std::uint32_t key = 0;
  };

  // One RDMA write. `signaled`: the request is signaled, which means that the device reports its completion. Of the
  // other requests, post() makes at least every depth() / 4th signaled, so that space in the send queue is
  // recovered.
  struct Write {
    std::span<const GatherElement> elements;
    RemoteAddress aim;
    std::optional<std::uint32_t> immediate;  // none: the peer gets no notification
    bool signaled = false;
  };
  static constexpr std::size_t kMostChained = 2;

  using PairRegistrations = ReceiveTargets::PairRegistrations;

  struct Payload {
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    // registrations of `data` for each queue pair; null if the data is in the send slot of this message
    const PairRegistrations* registrations = nullptr;
    // a caller will soon wait for the completion of this message
    bool signaled = false;
  };

  VerbsLane(const VerbsLaneOptions& options, HandshakeChannel& handshake_channel);
  Status prepare(const std::vector<Rail>& rails);
  std::string handshake_message() const;
  void connect();
  bool accept_handshake(const std::string& text);
  void fail(const std::string& why);
  void report_broken(std::size_t pair, const std::string& words);
  bool must_report_released() const;
  void report_released();
  bool has_capacity() const;
  std::size_t least_parts_of(std::uint64_t bytes) const;
  std::size_t parts_of(std::uint64_t bytes) const;
  std::uint64_t stride() const;
  std::uint64_t half_bytes() const;  // bytes of one half of memory_: of the send half or of the receive half
  // Capacity of a queue pair, in requests: the parts of each message, the messages that report releases, and some
  // that only request a completion.
  std::uint32_t depth() const { return 4 * options_.slots + 16; }
  void take_descriptor(std::uint32_t number);
  void acknowledge_revocation();
  std::byte* send_slot(std::uint64_t number) const;
  const std::byte* receive_slot(std::uint64_t number) const;
  std::optional<PairRegistrations> register_for_all(VerbsDevice::MemoryUse use, std::span<const std::byte> memory);
  std::optional<PairRegistrations> register_source(std::span<const std::byte> whole, const std::byte* data,
                                                   std::uint64_t bytes);
  void send_message(const Payload& payload, const CallTag& tag);
  RemoteAddress slots_at(std::size_t pair, std::uint64_t offset) const;
  void post(std::size_t pair, std::span<const Write> writes);
  void post_empty(std::size_t pair, std::uint32_t immediate);
  void request_completion(std::size_t pair);
  void add_released(std::uint64_t more);
  std::string describe_pair(const Pair& pair) const;

  void on_arrival(std::size_t pair, std::uint32_t immediate) override;
  void on_done(std::size_t pair, std::uint64_t number) override;
  void on_failure(std::size_t pair, const std::string& words) override;

  const VerbsLaneOptions options_;
  HandshakeChannel& handshake_channel_;
  // The send half (slots and descriptors), followed by the receive half (slots and descriptors).
  std::byte* memory_ = nullptr;
  std::vector<std::pair<VerbsRail*, ibv_mr*>> regions_;
  std::vector<Pair> pairs_;
  // For each queue pair, the speed of the slower of its two ports, in Mbit/s. Empty if one of the speeds is unknown.
  std::vector<std::uint32_t> weights_;
  std::uint64_t remote_slots_ = 0;  // address of the peer's receive slots
  enum class Stage : std::uint8_t { kHandshakeSent, kReadySent, kConnected, kClosed } stage_ = Stage::kHandshakeSent;
  std::string broken_;
  bool peer_reported_broken_ = false;
  bool corrupt_ = false;
  // Sending.
  std::uint64_t sent_ = 0;           // messages sent so far
  std::uint64_t peer_released_ = 0;  // messages of those that the peer has released
  std::size_t next_pair_ = 0;
  // The offset in the output of the peer that aim() has set for the next message.
  std::optional<std::uint64_t> next_offset_;
  ReceiveTargets receive_targets_;  // receive buffers of both directions
  // The number of an output that the peer has revoked, until this rank has acknowledged the revocation.
  std::optional<std::uint16_t> revoked_by_peer_;
  // Receiving.
  std::vector<std::uint32_t> parts_;  // for each slot: parts of its message that have arrived
  std::vector<bool> whole_;           // for each slot: its message has arrived completely
  // The header of the next message. It is a copy that has been checked, because the peer can still change the slot.
  std::optional<Header> front_;
  std::uint64_t arrived_ = 0;            // complete messages that have arrived so far
  std::uint64_t released_ = 0;           // messages of those that this rank has released
  std::uint64_t reported_released_ = 0;  // releases of those that the peer has been informed of
};

}  // namespace tutti
