// The part of UcxWorker that receives messages, makes progress, prepares for sleep, and ends.
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "transports/ucx/worker.h"

namespace tutti {
namespace {

// Alignment in bytes that a payload needs to remain in memory of UCX.
constexpr std::size_t kAligned = 16;
constexpr int kMaxArmTries = 1000;                   // tries to fall asleep while messages continue to arrive
constexpr std::int64_t kEndTimeoutNs = 500'000'000;  // for endpoints to close

}  // namespace

// ---- receiving ----

ucs_status_t UcxWorker::on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                   std::size_t bytes, const ucp_am_recv_param_t* param) {
  UcxWorker& worker = *static_cast<UcxWorker*>(self);
  ucs_status_t taken = UCS_OK;
  worker.in_callback([&] { taken = worker.take(header, header_bytes, data, bytes, param->recv_attr); });
  return taken;
}

// Handles an active message. It may come from any process, so nothing in it is trusted.
ucs_status_t UcxWorker::take(const void* header_data, std::size_t header_bytes, void* data, std::size_t bytes,
                             std::uint64_t how) {
  if (ending_) return UCS_OK;
  UcxHeader header;
  if (header_bytes == sizeof(header)) std::memcpy(&header, header_data, sizeof(header));
  if (header_bytes != sizeof(header) || header.magic != kUcxMagic || header.key != key_ ||
      header.sender >= options_.ranks || header.sender == options_.rank || options_.offers[header.sender].empty() ||
      header.lane >= options_.lanes) {
    ++refused_;
    return UCS_OK;
  }
  UcxPeer& peer = peers_[header.sender];
  use_peer(peer);
  if (header.kind == UcxMessageType::kLast) {
    peer.left = true;
    return UCS_OK;
  }
  UcxLane& lane = peer.lanes[header.lane];
  use(lane);
  const std::uint32_t news = header.released - static_cast<std::uint32_t>(lane.credited);
  if (news <= lane.started - lane.credited) lane.credited += news;  // otherwise it is an older report that arrived late
  if (header.kind == UcxMessageType::kCredit) return UCS_OK;
  if (header.kind == UcxMessageType::kOffer) return take_offer(lane, data, bytes, how);
  const std::uint32_t ahead = header.number - static_cast<std::uint32_t>(lane.released);
  const std::uint64_t number = lane.released + ahead;
  UcxArrived& message = lane.arrivals[number % options_.slots];
  const bool written = header.kind == UcxMessageType::kWritten && lane.slots != nullptr;
  if ((header.kind != UcxMessageType::kMessage && !written) || ahead >= options_.slots ||
      message.state != UcxArrived::State::kEmpty || bytes != (written ? 0 : header.bytes) ||
      header.bytes > options_.slot_bytes || header.tag.sequence == 0) {
    lane.corrupt = true;
    return UCS_OK;
  }
  message.header = header;
  lane.seen = std::max(lane.seen, number + 1);
  queue_report(lane);
  if (!written) {
    if (header.bytes >= kUcxPutFrom && peer.writes) wants_slots(lane);
    return take_message(message, data, how);
  }
  message.state = UcxArrived::State::kComplete;
  message.data = lane.slots->slot(number);
  return UCS_OK;
}

ucs_status_t UcxWorker::take_message(UcxArrived& message, void* data, std::uint64_t how) {
  if ((how & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    message.state = UcxArrived::State::kAnnounced;
    message.kept = data;
    announced_.push_back(&message);
    return UCS_INPROGRESS;
  }
  message.state = UcxArrived::State::kComplete;
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % kAligned == 0;
  if ((how & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 && aligned && message.header.bytes > 0) {
    message.kept = data;
    message.data = static_cast<const std::byte*>(data);
    return UCS_INPROGRESS;
  }
  if (message.memory == nullptr) message.memory = make_page_bytes(options_.slot_bytes);
  if (message.header.bytes > 0) std::memcpy(message.memory.get(), data, message.header.bytes);
  message.data = message.memory.get();
  return UCS_OK;
}

void UcxWorker::fetch(UcxArrived& message) {
  if (message.memory == nullptr) message.memory = make_page_bytes(options_.slot_bytes);
  message.data = message.memory.get();
  message.state = UcxArrived::State::kFetching;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.user_data = &message;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.recv_am = &UcxWorker::on_fetched;
  void* request = ucx_.am_recv_data_nbx(worker_, std::exchange(message.kept, nullptr), message.memory.get(),
                                        message.header.bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  if (request == nullptr) {
    message.state = UcxArrived::State::kComplete;
  } else {
    fail(*message.lane->peer, UCS_PTR_STATUS(request), "receiving");
  }
}

void UcxWorker::on_fetched(void* request, ucs_status_t status, std::size_t bytes, void* message) {
  UcxArrived& fetched = *static_cast<UcxArrived*>(message);
  UcxPeer& peer = *fetched.lane->peer;
  peer.worker->in_callback([&] {
    peer.worker->ucx_.request_free(request);
    if (status == UCS_OK && bytes == fetched.header.bytes) {
      fetched.state = UcxArrived::State::kComplete;
    } else {
      peer.worker->fail(peer, status == UCS_OK ? UCS_ERR_MESSAGE_TRUNCATED : status, "receiving");
    }
  });
}

UcxArrived* UcxWorker::next(UcxLane& lane) {
  if (over()) return nullptr;
  UcxArrived& message = lane.arrivals[lane.released % options_.slots];
  if (message.state != UcxArrived::State::kComplete) progress();
  return message.state == UcxArrived::State::kEmpty ? nullptr : &message;
}

void UcxWorker::release(UcxLane& lane, UcxArrived& message) {
  TUTTI_ASSERT(message.state == UcxArrived::State::kComplete || over());
  if (message.kept != nullptr && !over()) ucx_.am_data_release(worker_, message.kept);
  message.kept = nullptr;
  message.data = nullptr;
  message.state = UcxArrived::State::kEmpty;
  ++lane.released;
  lane.unreported_bytes += ucx_message_bytes(message.header);
  queue_report(lane);
}

// ---- progress ----

void UcxWorker::progress() {
  if (over()) return;
  if (!unconnected_.empty()) {
    std::erase_if(unconnected_, [this](UcxPeer* peer) { return connect(*peer); });
  }
  ucx_.worker_progress(worker_);
  rethrow();
  settle();
}

// Does the work that callbacks of UCX have queued, because it must not be done within them.
void UcxWorker::settle() {
  // None of these calls runs a callback, so the lists do not grow meanwhile.
  for (UcxArrived* message : announced_) fetch(*message);
  announced_.clear();
  for (UcxLane* lane : offered_) read_offer(*lane);
  offered_.clear();
  for (UcxSend* message : written_) start_message(*message);
  written_.clear();
  if (!offering_.empty()) std::erase_if(offering_, [this](UcxLane* lane) { return offer_slots(*lane); });
  if (!failed_.empty() || !closing_.empty()) close_failed();
}

void UcxWorker::pump() {
  progress();
  flush();
}

// Prepares for sleep. UCX permits that only when it has no event left.
bool UcxWorker::arm() {
  for (int tries = 0; tries < kMaxArmTries && !over(); ++tries) {
    for (int rounds = 0; rounds < kMaxArmTries && ucx_.worker_progress(worker_) != 0; ++rounds) {
    }
    rethrow();
    settle();
    if (ucx_.worker_arm(worker_) == UCS_OK) return true;
  }
  return over();
}

// ---- end ----

void UcxWorker::send_last(UcxPeer& peer) {
  peer.last_sent = true;
  peer.last = header_to(peer, UcxMessageType::kLast);
  void* request = post(peer, peer.last, {}, &UcxWorker::on_last, &peer);
  peer.last_going = UCS_PTR_IS_PTR(request);
  if (UCS_PTR_IS_ERR(request)) fail(peer, UCS_PTR_STATUS(request), "sending");
}

void UcxWorker::on_last(void* request, ucs_status_t status, void* peer) {
  UcxPeer& reported = *static_cast<UcxPeer*>(peer);
  reported.worker->in_callback([&] {
    reported.last_going = false;
    reported.worker->ucx_.request_free(request);
    if (status != UCS_OK) reported.worker->fail(reported, status, "sending");
  });
}

// True if everything for this peer has left this process, or cannot be sent any more.
bool UcxWorker::drained(UcxPeer& peer) {
  if (!peer.introduced || peer.dead() || peer.left) return true;
  bool idle = true;
  bool all_gone = true;
  for (const UcxLane& lane : peer.lanes) {
    idle &= lane.started == lane.sent && lane.going == 0 && !lane.credit_going;
    all_gone &= is_handed_over(lane);
  }
  if (!peer.connected) return idle || links_->status(peer.rank).life != PeerLife::kLive;
  if (!peer.last_sent && idle) send_last(peer);
  if (idle && peer.last_sent && !peer.last_going && all_gone) return true;
  return links_->status(peer.rank).life != PeerLife::kLive;
}

void UcxWorker::drain(std::int64_t timeout_ns) {
  if (over() || !links_->own_process()) return;
  const std::int64_t latest_ns = clock_.now_ns() + timeout_ns;
  for (;;) {
    handshake_channel_->pump();
    progress();
    flush();
    bool all = true;
    for (UcxPeer& peer : peers_) all &= drained(peer);
    if (all || clock_.now_ns() > latest_ns) return;
    sched_yield();
  }
}

// True if UCX still has requests of this worker in its queues.
bool UcxWorker::busy() const {
  return unfinished_ > 0 || !closing_.empty() || std::any_of(peers_.begin(), peers_.end(), [](const UcxPeer& peer) {
           return peer.last_going || std::any_of(peer.lanes.begin(), peer.lanes.end(), [](const UcxLane& lane) {
                    return lane.credit_going || lane.offer_going ||
                           std::any_of(lane.arrivals.begin(), lane.arrivals.end(), [](const UcxArrived& message) {
                             return message.state == UcxArrived::State::kFetching;
                           });
                  });
         });
}

void UcxWorker::end() {
  if (over()) return;
  if (!context_->own_process()) {  // a forked child: all resources belong to the parent
    worker_ = nullptr;
    return;
  }
  ending_ = true;
  for (UcxPeer& peer : peers_) {
    for (UcxLane& lane : peer.lanes) {
      for (UcxArrived& message : lane.arrivals) {
        if (message.kept != nullptr) ucx_.am_data_release(worker_, std::exchange(message.kept, nullptr));
      }
    }
    if (!no_failure_detection_) close(peer);
  }
  announced_.clear();
  offering_.clear();
  const std::int64_t latest_ns = clock_.now_ns() + kEndTimeoutNs;
  do {
    ucx_.worker_progress(worker_);
    close_failed();
  } while (!closing_.empty() && clock_.now_ns() < latest_ns);
  // Endpoints that cannot detect failures cannot be closed by force either, and UCX aborts the process if an
  // endpoint with queued requests is destroyed. Such a worker is kept until the process ends.
  if (no_failure_detection_ && busy()) {
    std::vector<std::unique_ptr<UcxSlots>> slots;  // a peer may still write there
    for (UcxPeer& peer : peers_) {
      for (UcxLane& lane : peer.lanes) {
        if (lane.slots != nullptr) slots.push_back(std::move(lane.slots));
      }
    }
    UcxContext::retain(context_, worker_, std::move(slots));
  } else {
    for (UcxPeer& peer : peers_) release_keys(peer);
    ucx_.worker_destroy(worker_);
  }
  worker_ = nullptr;
}

}  // namespace tutti
