#include "transports/ucx/sender.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

// Assumed number of lanes to one peer on which calls wait for is_handed_over() at the same time: one lane of a
// collective, and kPointToPointLane. A plan that uses several lanes between two ranks (for example circulant) exceeds
// it.
constexpr std::uint64_t kBusyLanes = 2;

}  // namespace

bool UcxSender::may_send(const UcxLane& lane) const {
  const std::uint32_t slots = endpoints_.options().slots;
  return ucp_.over() ||
         (!lane.peer->dead() && lane.sent - lane.credited < slots && !lane.sends[lane.sent % slots].going);
}

std::byte* UcxSender::slot(UcxLane& lane) {
  PageBytes& memory = lane.sends[lane.sent % endpoints_.options().slots].memory;
  if (memory == nullptr) memory = make_page_bytes(endpoints_.options().slot_bytes);
  return memory.get();
}

void UcxSender::send(UcxLane& lane, std::uint64_t bytes, const CallTag& tag) {
  TUTTI_ASSERT(bytes <= endpoints_.options().slot_bytes);
  if (ucp_.over() || lane.peer->dead()) return;
  TUTTI_ASSERT(lane.sent - lane.credited < endpoints_.options().slots);
  UcxSend& message = lane.sends[lane.sent % endpoints_.options().slots];
  TUTTI_ASSERT(!message.going);
  message.header = {.lane = lane.number,
                    .sender = endpoints_.options().rank,
                    .bytes = static_cast<std::uint32_t>(bytes),
                    .number = static_cast<std::uint32_t>(lane.sent),
                    .tag = tag};
  ++lane.sent;
  endpoints_.note_sent();
  if (lane.peer->connected) start(lane);
}

void UcxSender::start(UcxLane& lane) {
  UcxPeer& peer = *lane.peer;
  while (lane.started < lane.sent && !peer.dead()) {
    UcxSend& message = lane.sends[lane.started % endpoints_.options().slots];
    ++lane.started;
    ++lane.going;
    message.going = true;
    message.header.key = peer.key;
    if (writes(lane, message.header)) {
      write(message);
    } else {
      start_message(message);
    }
  }
}

// Sends the active message, with the payload, or without it if the payload was put into a slot of the receiver.
void UcxSender::start_message(UcxSend& message) {
  UcxLane& lane = *message.lane;
  if (lane.peer->dead()) return finish(message);
  message.header.released = static_cast<std::uint32_t>(lane.released);
  lane.reported = lane.released;
  lane.unreported_bytes = 0;
  const bool written = message.header.kind == UcxMessageType::kWritten;
  const std::string_view data(reinterpret_cast<const char*>(message.memory.get()), written ? 0 : message.header.bytes);
  void* request = endpoints_.post(*lane.peer, message.header, data, &UcxSender::on_sent, &message);
  if (UCS_PTR_IS_PTR(request)) return;
  finish(message);
  if (UCS_PTR_IS_ERR(request)) endpoints_.fail(*lane.peer, UCS_PTR_STATUS(request), "sending");
}

void UcxSender::finish(UcxSend& message) {
  message.going = false;
  --message.lane->going;
  endpoints_.note_finished();
}

void UcxSender::on_sent(void* request, ucs_status_t status, void* send) {
  UcxSend& message = *static_cast<UcxSend*>(send);
  UcxPeer& peer = *message.lane->peer;
  UcxSender& self = *peer.sender;
  self.ucp_.in_callback([&] {
    self.finish(message);
    self.ucp_.functions().request_free(request);
    if (status != UCS_OK) self.endpoints_.fail(peer, status, "sending");
  });
}

bool UcxSender::is_delivered(const UcxLane& lane) const {
  return ucp_.over() || (lane.started == lane.sent && lane.going == 0);
}

// Bytes of the messages that were passed to UCX, and that the peer has not reported as released.
std::uint64_t UcxSender::unconfirmed_bytes(const UcxLane& lane) const {
  std::uint64_t bytes = 0;
  for (std::uint64_t number = lane.credited; number < lane.started; ++number) {
    bytes += ucx_message_bytes(lane.sends[number % endpoints_.options().slots].header);
  }
  return bytes;
}

// True if the operating system or the peer has all messages of this lane that were passed to UCX. Only this lane
// counts, because unread messages of another call must not delay this one. If the endpoint of the peer is broken, the
// result is true only if the peer has left properly. If the peer has not left, the waiting caller finds that the peer
// is unreachable.
bool UcxSender::is_handed_over(const UcxLane& lane) const {
  if (lane.peer->dead()) return lane.peer->left;
  return unconfirmed_bytes(lane) <= kUcxSystemTakes / kBusyLanes;
}

void UcxSender::note_released(UcxLane& lane, std::uint32_t released) {
  const std::uint32_t news = released - static_cast<std::uint32_t>(lane.credited);
  if (news <= lane.started - lane.credited) lane.credited += news;  // otherwise the report is older or invalid
}

void UcxSender::settle() {
  // None of these calls runs a callback, so the lists do not grow meanwhile.
  for (UcxLane* lane : offered_) read_offer(*lane);
  offered_.clear();
  for (UcxSend* message : written_) start_message(*message);
  written_.clear();
}

// ---- slots of the receiver ----

// A correct peer sends at most one advertisement for each lane, after a message of this rank, and it is well-formed. A
// malformed one, one that arrives before this rank is connected to the peer, or a second one after one that was kept
// makes the lane corrupt. The advertisement is ignored if this rank does not write into slots of the peer, or if UCX
// only announces the data of the advertisement (rendezvous, because of UCX_RNDV_THRESH). Long messages are then still
// sent as active messages.
void UcxSender::take_offer(UcxLane& lane, const void* data, std::size_t bytes, std::uint64_t how) {
  const bool first = lane.key == nullptr && lane.offered.empty();
  if (!first || bytes <= sizeof(UcxSlotsOffer) || bytes > sizeof(UcxSlotsOffer) + kMostUcxKey ||
      !lane.peer->connected) {
    lane.corrupt = true;
    return;
  }
  if (!lane.peer->writes || (how & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return;
  lane.offered.assign(static_cast<const char*>(data), bytes);
  offered_.push_back(&lane);
}

void UcxSender::read_offer(UcxLane& lane) {
  if (lane.peer->dead()) return;
  UcxSlotsOffer offer;
  std::memcpy(&offer, lane.offered.data(), sizeof(offer));
  // ucp_ep_rkey_unpack() does not receive the length of the key, but reads as far as the key itself demands. So the
  // key is copied into a longer buffer of zeros: if a malformed key demands too much, UCX reads zeros.
  std::array<char, kMostUcxKey * 8> key{};
  std::memcpy(key.data(), lane.offered.data() + sizeof(offer), lane.offered.size() - sizeof(offer));
  const ucs_status_t status = ucp_.functions().ep_rkey_unpack(lane.peer->endpoint, key.data(), &lane.key);
  if (status != UCS_OK) {
    lane.key = nullptr;
    endpoints_.note_no_slots(ucx_error(ucp_.functions(), "reading the key of a peer's slots", status).message);
    return;
  }
  lane.remote_slots = offer.address;
}

void UcxSender::release_keys() {
  for (UcxPeer& peer : endpoints_.peers()) {
    for (UcxLane& lane : peer.lanes) {
      if (lane.key != nullptr) ucp_.functions().rkey_destroy(std::exchange(lane.key, nullptr));
    }
  }
}

bool UcxSender::writes(const UcxLane& lane, const UcxHeader& header) const {
  return lane.key != nullptr && header.bytes >= kUcxPutFrom;
}

// The announcement is sent after a flush, which confirms that the data has arrived. In UCX 1.13 a fence is not
// enough, because it orders a put and a message only if both use the same queue pair. The put and the flush are
// started together, so that the flush does not wait for later puts.
void UcxSender::write(UcxSend& message) {
  UcxLane& lane = *message.lane;
  message.header.kind = UcxMessageType::kWritten;
  const std::uint64_t slot = (lane.started - 1) % endpoints_.options().slots;
  const std::uint64_t place = lane.remote_slots + slot * ucx_slot_stride(endpoints_.options().slot_bytes);
  const ucp_request_param_t param = ucx_request_param(&UcxSender::on_written, &message);
  message.writing = 1;  // counts this function, so that the message is not announced before the flush has been started
  void* put = ucp_.functions().put_nbx(lane.peer->endpoint, message.memory.get(), message.header.bytes, place, lane.key,
                                       &param);
  if (await_written(message, put)) await_written(message, ucp_.functions().ep_flush_nbx(lane.peer->endpoint, &param));
  if (--message.writing == 0) start_message(message);
}

// Counts a request that must complete before the announcement. Returns false if the request has failed.
bool UcxSender::await_written(UcxSend& message, void* request) {
  if (UCS_PTR_IS_PTR(request)) ++message.writing;
  if (!UCS_PTR_IS_ERR(request)) return true;
  endpoints_.fail(*message.lane->peer, UCS_PTR_STATUS(request), "writing");
  return false;
}

void UcxSender::on_written(void* request, ucs_status_t status, void* send) {
  UcxSend& message = *static_cast<UcxSend*>(send);
  UcxPeer& peer = *message.lane->peer;
  UcxSender& self = *peer.sender;
  self.ucp_.in_callback([&] {
    self.ucp_.functions().request_free(request);
    if (status != UCS_OK) self.endpoints_.fail(peer, status, "writing");
    if (--message.writing == 0) self.written_.push_back(&message);
  });
}

}  // namespace tutti
