// The part of UcxWorker that writes long messages into the slots of the receiver with ucp_put_nbx.
#include <array>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "transports/ucx/worker.h"

namespace tutti {

// ---- slots of the receiver ----

// Runs within callbacks of UCX, so it only queues the lane. settle() does the rest.
void UcxWorker::wants_slots(UcxLane& lane) {
  if (lane.offers) return;
  lane.offers = true;
  offering_.push_back(&lane);
}

// Creates the slots of a lane and advertises them. Returns true if nothing more must be done for this lane.
bool UcxWorker::offer_slots(UcxLane& lane) {
  UcxPeer& peer = *lane.peer;
  if (peer.dead()) return true;
  if (!peer.connected) return false;
  auto slots = UcxSlots::create(context_, options_.slots, options_.slot_bytes);
  if (!slots) {
    no_slots_ = slots.error().message;
    return true;
  }
  lane.slots = std::move(*slots);
  lane.offer = header_to(peer, UcxMessageType::kOffer);
  lane.offer.lane = lane.number;
  lane.offer.bytes = static_cast<std::uint32_t>(lane.slots->offer().size());
  lane.offer.released = static_cast<std::uint32_t>(lane.released);
  void* request = post(peer, lane.offer, lane.slots->offer(), &UcxWorker::on_offered, &lane);
  lane.offer_going = UCS_PTR_IS_PTR(request);
  if (UCS_PTR_IS_ERR(request)) fail(peer, UCS_PTR_STATUS(request), "sending");
  return true;
}

void UcxWorker::on_offered(void* request, ucs_status_t status, void* lane) {
  UcxLane& reported = *static_cast<UcxLane*>(lane);
  reported.peer->worker->in_callback([&] {
    reported.offer_going = false;
    reported.peer->worker->ucx_.request_free(request);
    if (status != UCS_OK) reported.peer->worker->fail(*reported.peer, status, "sending");
  });
}

// A correct peer sends one well-formed advertisement for each lane. If UCX only announces its data (rendezvous,
// because of UCX_RNDV_THRESH), it is ignored, and messages remain active messages.
ucs_status_t UcxWorker::take_offer(UcxLane& lane, const void* data, std::size_t bytes, std::uint64_t how) {
  const bool first = lane.key == nullptr && lane.offered.empty();
  if (!first || bytes <= sizeof(UcxSlotsOffer) || bytes > sizeof(UcxSlotsOffer) + kMostUcxKey ||
      !lane.peer->connected) {
    lane.corrupt = true;
    return UCS_OK;
  }
  if (!lane.peer->writes || (how & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  lane.offered.assign(static_cast<const char*>(data), bytes);
  offered_.push_back(&lane);
  return UCS_OK;
}

void UcxWorker::read_offer(UcxLane& lane) {
  if (lane.peer->dead()) return;
  UcxSlotsOffer offer;
  std::memcpy(&offer, lane.offered.data(), sizeof(offer));
  // ucp_ep_rkey_unpack() does not receive the length of the key, but reads as far as the key itself demands. So the
  // key is copied into a longer buffer of zeros: if a malformed key demands too much, UCX reads zeros.
  std::array<char, kMostUcxKey * 8> key{};
  std::memcpy(key.data(), lane.offered.data() + sizeof(offer), lane.offered.size() - sizeof(offer));
  const ucs_status_t status = ucx_.ep_rkey_unpack(lane.peer->endpoint, key.data(), &lane.key);
  if (status != UCS_OK) {
    lane.key = nullptr;
    no_slots_ = ucx_error(ucx_, "reading the key of a peer's slots", status).message;
    return;
  }
  lane.remote_slots = offer.address;
}

// Call it when no request uses the keys any more.
void UcxWorker::release_keys(UcxPeer& peer) {
  for (UcxLane& lane : peer.lanes) {
    if (lane.key != nullptr) ucx_.rkey_destroy(std::exchange(lane.key, nullptr));
  }
}

// ---- writing ----

bool UcxWorker::writes(const UcxLane& lane, const UcxHeader& header) const {
  return lane.key != nullptr && header.bytes >= kUcxPutFrom;
}

// The announcement is sent after a flush, which confirms that the data has arrived. In UCX 1.13 a fence is not
// enough, because it orders a put and a message only if both use the same queue pair. The put and the flush are
// started together, so that the flush does not wait for later puts.
void UcxWorker::write(UcxSend& message) {
  UcxLane& lane = *message.lane;
  message.header.kind = UcxMessageType::kWritten;
  const std::uint64_t slot = (lane.started - 1) % options_.slots;
  const std::uint64_t place = lane.remote_slots + slot * ucx_slot_stride(options_.slot_bytes);
  const ucp_request_param_t param = ucx_request_param(&UcxWorker::on_written, &message);
  message.writing = 1;  // until both have been started
  void* put = ucx_.put_nbx(lane.peer->endpoint, message.memory.get(), message.header.bytes, place, lane.key, &param);
  if (await_written(message, put)) await_written(message, ucx_.ep_flush_nbx(lane.peer->endpoint, &param));
  if (--message.writing == 0) start_message(message);
}

// Counts a request that must complete before the announcement. Returns false if the request has failed.
bool UcxWorker::await_written(UcxSend& message, void* request) {
  if (UCS_PTR_IS_PTR(request)) ++message.writing;
  if (!UCS_PTR_IS_ERR(request)) return true;
  fail(*message.lane->peer, UCS_PTR_STATUS(request), "writing");
  return false;
}

void UcxWorker::on_written(void* request, ucs_status_t status, void* send) {
  UcxSend& message = *static_cast<UcxSend*>(send);
  UcxPeer& peer = *message.lane->peer;
  peer.worker->in_callback([&] {
    peer.worker->ucx_.request_free(request);
    if (status != UCS_OK) peer.worker->fail(peer, status, "writing");
    if (--message.writing == 0) peer.worker->written_.push_back(&message);
  });
}

}  // namespace tutti
