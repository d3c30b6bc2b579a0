// The part of UcxWorker that writes long messages into the receiver's slots.
#include <array>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "transports/ucx/worker.h"

namespace tutti {

// ---- the receiver's slots ----

// Within UCX's callbacks: the rest is settle()'s.
void UcxWorker::wants_slots(UcxLane& lane) {
  if (lane.offers) return;
  lane.offers = true;
  offering_.push_back(&lane);
}

// True when nothing is left to do for it.
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
  lane.offer = header_to(peer, UcxKind::kOffer);
  lane.offer.lane = lane.number;
  lane.offer.bytes = static_cast<std::uint32_t>(lane.slots->offer().size());
  lane.offer.released = static_cast<std::uint32_t>(lane.released);
  void* request = post(peer, lane.offer, lane.slots->offer(), &UcxWorker::on_offered, &lane);
  lane.offer_going = UCS_PTR_IS_PTR(request);
  if (UCS_PTR_IS_ERR(request)) fail(peer, UCS_PTR_STATUS(request), "sending");
  return true;
}

void UcxWorker::on_offered(void* request, ucs_status_t status, void* lane) {
  UcxLane& told = *static_cast<UcxLane*>(lane);
  told.peer->worker->in_callback([&] {
    told.offer_going = false;
    told.peer->worker->ucx_.request_free(request);
    if (status != UCS_OK) told.peer->worker->fail(*told.peer, status, "sending");
  });
}

// A second one, or one that is none, is no sound peer's. What only announces its words (UCX_RNDV_THRESH) is left alone:
// messages stay active ones.
ucs_status_t UcxWorker::take_offer(UcxLane& lane, const void* data, std::size_t bytes, std::uint64_t how) {
  const bool first = lane.key == nullptr && lane.offered.empty();
  if (!first || bytes <= sizeof(UcxOffer) || bytes > sizeof(UcxOffer) + kMostUcxKey || !lane.peer->connected) {
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
  UcxOffer offer;
  std::memcpy(&offer, lane.offered.data(), sizeof(offer));
  // UCX reads a key to its own end, which it is not told: a key that lies reads zeros.
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

// When nothing that uses them is left.
void UcxWorker::release_keys(UcxPeer& peer) {
  for (UcxLane& lane : peer.lanes) {
    if (lane.key != nullptr) ucx_.rkey_destroy(std::exchange(lane.key, nullptr));
  }
}

// ---- writing ----

bool UcxWorker::writes(const UcxLane& lane, const UcxHeader& header) const {
  return lane.key != nullptr && header.bytes >= kUcxPutFrom;
}

// UCX 1.13 keeps the order of a put and a message behind a fence only where both go by the same queue pair, so the
// message waits for a flush: it has been written then. Both are asked for at once, so that it waits for no later one.
void UcxWorker::write(UcxSend& message) {
  UcxLane& lane = *message.lane;
  message.header.kind = UcxKind::kWritten;
  const std::uint64_t slot = (lane.started - 1) % options_.slots;
  const std::uint64_t place = lane.remote_slots + slot * ucx_slot_stride(options_.slot_bytes);
  const ucp_request_param_t param = ucx_request_param(&UcxWorker::on_written, &message);
  message.writing = 1;  // until both have been asked for
  void* put = ucx_.put_nbx(lane.peer->endpoint, message.memory.get(), message.header.bytes, place, lane.key, &param);
  if (await_written(message, put)) await_written(message, ucx_.ep_flush_nbx(lane.peer->endpoint, &param));
  if (--message.writing == 0) start_message(message);
}

// False where it has failed.
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
