// UcxPeer and UcxLane: the state of a peer of a UcxWorker, and of a lane of messages between this rank and the peer.
// UcxEndpoints owns all of them. Use them in the thread that drives progress.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transports/tcp/socket.h"
#include "transports/transport.h"
#include "transports/ucx/library.h"
#include "transports/ucx/slots.h"
#include "transports/ucx/wire.h"

namespace tutti {

struct UcxLane;
struct UcxPeer;

// When UCX reports that a send is complete, its data may still wait in this process for space in a socket, and a UCX
// flush would need the cooperation of the peer. So UcxSender::is_handed_over() counts the bytes of a lane that the peer
// has not reported as released. The operating system is assumed to take kUcxSystemTakes bytes for a connection, and at
// most kBusyLanes lanes (sender.cc) to a peer are assumed to be busy at a time. So if the count of a lane is at most
// kUcxSystemTakes / kBusyLanes, the operating system has all of these bytes. Receivers report releases at least every
// kUcxReportBytes bytes, so the released bytes for which no report is due stay below kUcxSystemTakes for all lanes
// between two ranks together.
inline constexpr std::uint64_t kUcxSystemTakes = 64 * 1024;
inline constexpr std::uint64_t kUcxReportBytes = kUcxSystemTakes / (kPointToPointLane + 2);

// The parameters of a request that calls `done` with `user` when it is complete.
inline ucp_request_param_t ucx_request_param(ucp_send_nbx_callback_t done, void* user) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = done;
  param.user_data = user;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return param;
}

// A message of this rank, from send() until UCX does not need it any more.
struct UcxSend {
  UcxLane* lane = nullptr;
  UcxHeader header;
  PageBytes memory;
  bool going = false;  // UcxSender has passed the message to UCX, and UCX has not completed it yet
  // Number of requests of UCX (a put and a flush) that must complete before the message is announced, plus 1 while
  // UcxSender::write() runs.
  std::uint32_t writing = 0;
};

// A message of the peer, until it is released.
struct UcxArrived {
  // kEmpty: no message. kAnnounced: the sender has announced a message (rendezvous protocol), and its payload must be
  // fetched. kFetching: the payload is being fetched. kComplete: the whole message is here.
  enum class State : std::uint8_t { kEmpty, kAnnounced, kFetching, kComplete };
  UcxLane* lane = nullptr;
  UcxHeader header;
  State state = State::kEmpty;
  PageBytes memory;  // holds the payload if it could not remain in memory of UCX
  // Data that UCX keeps for this message; null: none. In state kAnnounced it is the handle for fetching the payload. In
  // state kComplete it is the payload itself, which release() gives back to UCX.
  void* kept = nullptr;
  const std::byte* data = nullptr;  // the payload, in state kComplete
};

// Both directions between this rank and a peer on one lane. The counters of messages start at 0 and never decrease,
// except `going`.
struct UcxLane {
  UcxPeer* peer = nullptr;
  std::uint16_t number = 0;
  std::vector<UcxSend> sends;        // index: number of the message modulo slots; empty until the lane is used
  std::uint64_t sent = 0;            // messages that this rank has sent
  std::uint64_t started = 0;         // number of these messages that were passed to UCX, or dropped after a failure
  std::uint64_t credited = 0;        // number of these messages that the peer has reported as released
  std::uint32_t going = 0;           // elements of `sends` that UCX has not completed
  std::vector<UcxArrived> arrivals;  // index: number of the message modulo slots
  std::uint64_t seen = 0;            // the highest message number that has arrived, plus 1
  std::uint64_t released = 0;        // messages that this rank has released
  std::uint64_t reported = 0;        // the value of `released` that the peer was informed of last
  // Bytes of released messages that were not reported to the peer.
  std::uint64_t unreported_bytes = 0;
  bool corrupt = false;  // the peer has sent something that a correct peer never sends
  UcxHeader credit;      // header of the message that reports released messages
  bool credit_going = false;
  bool report_queued = false;  // the lane is in UcxReceiver::reports_queue_
  // The next four members are for long messages from the peer to this rank.
  std::unique_ptr<UcxSlots> slots;  // the peer writes into them once they are advertised; null: not created
  bool offers = false;              // the lane was queued for the advertisement of its slots, which happens once
  UcxHeader offer;
  bool offer_going = false;
  // The next three members are for long messages from this rank to the peer.
  std::string offered;             // the peer's advertisement of its slots, as it arrived; empty: none was kept
  ucp_rkey_h key = nullptr;        // key of the peer's slots; null: they cannot be used (yet)
  std::uint64_t remote_slots = 0;  // address of the peer's slots; valid if `key` is not null
};

struct UcxPeer {
  std::uint32_t rank = 0;
  // These three pointers refer to the parts of the UcxWorker that owns this peer. They are here because a callback of
  // UCX gets only the peer, a lane or a message.
  class UcxEndpoints* endpoints = nullptr;
  class UcxSender* sender = nullptr;
  class UcxReceiver* receiver = nullptr;
  ucp_ep_h endpoint = nullptr;
  std::string resources;  // the devices that the endpoint uses, as far as UCX shows
  // Long messages in both directions may be put into slots of the receiver, because a NIC can write there, or because
  // of UcxPuts::kAlways.
  bool writes = false;
  bool introduced = false;  // this rank has sent its handshake message to the peer
  bool connected = false;   // the handshake message of the peer has arrived, and an endpoint was made for it
  std::uint64_t key = 0;    // the key in that handshake message; every header to the peer contains it
  std::vector<UcxLane> lanes;
  bool last_sent = false;
  bool last_going = false;
  UcxHeader last;
  bool left = false;  // the last message of the peer (kLast) has arrived
  ucs_status_t error = UCS_OK;
  std::string error_words;
  std::int64_t error_ns = 0;
  bool dead() const { return error != UCS_OK; }
};

}  // namespace tutti
