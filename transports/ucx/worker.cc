#include "transports/ucx/worker.h"

#include <fmt/format.h>
#include <sched.h>

#include <cstring>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

// How often arm() tries to prepare for sleep while messages continue to arrive, and how often it calls UCX for progress
// in each try.
constexpr int kMaxArmTries = 1000;
constexpr std::int64_t kEndTimeoutNs = 500'000'000;  // how long end() waits for the endpoints to close

}  // namespace

UcxWorker::UcxWorker(std::shared_ptr<UcxContext> context, const DataPathHost& host, const DataPathOptions& options)
    : handshake_channel_(&host.handshake_channel),
      links_(&host.links),
      ucp_(std::move(context)),
      endpoints_(ucp_, host.handshake_channel, options),
      sender_(ucp_, endpoints_),
      receiver_(ucp_, endpoints_) {
  for (UcxPeer& peer : endpoints_.peers()) {
    peer.sender = &sender_;
    peer.receiver = &receiver_;
  }
}

Result<std::shared_ptr<UcxWorker>> UcxWorker::create(std::shared_ptr<UcxContext> context, const DataPathHost& host,
                                                     const DataPathOptions& options) {
  std::shared_ptr<UcxWorker> worker(new UcxWorker(std::move(context), host, options));  // private constructor
  TUTTI_TRY(worker->ucp_.create(&UcxWorker::on_message, worker.get()));
  TUTTI_TRY(worker->endpoints_.set_up());
  const auto wake = worker->ucp_.wake_fd();
  if (!wake) return wake.error();
  TUTTI_TRY(host.links.doorbell().add_wait_source(*wake));
  host.links.doorbell().add_armed([weak = std::weak_ptr(worker)] {
    const auto living = weak.lock();
    if (living != nullptr && !living->arm()) living->links_->doorbell().stay_awake();
  });
  return worker;
}

Result<UcxLane*> UcxWorker::open(std::uint32_t rank, std::uint16_t lane) {
  UcxPeer& peer = endpoints_.peers()[rank];
  UcxLane& opened = endpoints_.lane(peer, lane);
  if (!over()) TUTTI_TRY(endpoints_.introduce(peer));
  return &opened;
}

// ---- sending ----

bool UcxWorker::ready(UcxLane& lane) {
  if (sender_.may_send(lane)) return true;
  progress();
  return sender_.may_send(lane);
}

bool UcxWorker::delivered(UcxLane& lane) {
  if (sender_.is_delivered(lane)) return true;
  progress();
  return sender_.is_delivered(lane);
}

bool UcxWorker::handed_over(UcxLane& lane) {
  if (!delivered(lane)) return false;
  if (over() || sender_.is_handed_over(lane)) return true;
  progress();
  return sender_.is_handed_over(lane);
}

// ---- receiving ----

ucs_status_t UcxWorker::on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                   std::size_t bytes, const ucp_am_recv_param_t* param) {
  UcxWorker& worker = *static_cast<UcxWorker*>(self);
  ucs_status_t taken = UCS_OK;
  worker.ucp_.in_callback([&] { taken = worker.take(header, header_bytes, data, bytes, param->recv_attr); });
  return taken;
}

// Handles an active message. It may come from any process, so nothing in it is trusted.
ucs_status_t UcxWorker::take(const void* header_data, std::size_t header_bytes, void* data, std::size_t bytes,
                             std::uint64_t how) {
  if (ending_) return UCS_OK;
  UcxHeader header;
  if (header_bytes == sizeof(header)) std::memcpy(&header, header_data, sizeof(header));
  if (header_bytes != sizeof(header) || header.magic != kUcxMagic || header.key != endpoints_.key() ||
      header.sender >= options().ranks || header.sender == options().rank || options().offers[header.sender].empty() ||
      header.lane >= options().lanes) {
    ++refused_;
    return UCS_OK;
  }
  UcxPeer& peer = endpoints_.peers()[header.sender];
  if (header.kind == UcxMessageType::kLast) {
    peer.left = true;
    return UCS_OK;
  }
  UcxLane& lane = endpoints_.lane(peer, header.lane);
  sender_.note_released(lane, header.released);
  if (header.kind == UcxMessageType::kCredit) return UCS_OK;
  if (header.kind == UcxMessageType::kOffer) {
    sender_.take_offer(lane, data, bytes, how);
    return UCS_OK;
  }
  return receiver_.take(lane, header, data, bytes, how);
}

UcxArrived* UcxWorker::next(UcxLane& lane) {
  if (over()) return nullptr;
  UcxArrived& message = receiver_.next(lane);
  if (message.state != UcxArrived::State::kComplete) progress();
  return message.state == UcxArrived::State::kEmpty ? nullptr : &message;
}

// ---- progress ----

void UcxWorker::progress() {
  if (over()) return;
  endpoints_.connect_waiting();
  ucp_.progress();
  ucp_.rethrow();
  settle();
}

// Does the work that callbacks of UCX have queued. That work must not be done within the callbacks.
void UcxWorker::settle() {
  receiver_.fetch_announced();
  sender_.settle();
  receiver_.offer_slots();
  endpoints_.close_failed();
}

bool UcxWorker::flush() {
  if (over()) return true;
  receiver_.report_all();
  if (endpoints_.unfinished() > 0) progress();
  return endpoints_.unfinished() == 0 && receiver_.all_reported();
}

void UcxWorker::pump() {
  progress();
  flush();
}

// Prepares for sleep. UCX permits that only when it has no event left.
bool UcxWorker::arm() {
  for (int tries = 0; tries < kMaxArmTries && !over(); ++tries) {
    for (int rounds = 0; rounds < kMaxArmTries && ucp_.progress() != 0; ++rounds) {
    }
    ucp_.rethrow();
    settle();
    if (ucp_.arm()) return true;
  }
  return over();
}

std::string UcxWorker::troubles() const {
  std::string text = endpoints_.troubles();
  if (refused_ > 0)
    text += fmt::format("{}refused {} messages that no peer has sent", text.empty() ? "" : "; ", refused_);
  return text;
}

// ---- end ----

// True if all messages for this peer have left this process, or cannot be sent any more. Sends the last message (kLast)
// when UCX has completed all messages and reports of credits.
bool UcxWorker::drained(UcxPeer& peer) {
  if (!peer.introduced || peer.dead() || peer.left) return true;
  bool idle = true;
  bool all_gone = true;
  for (const UcxLane& lane : peer.lanes) {
    idle &= lane.started == lane.sent && lane.going == 0 && !lane.credit_going;
    all_gone &= sender_.is_handed_over(lane);
  }
  if (!peer.connected) return idle || links_->status(peer.rank).life != PeerLife::kLive;
  if (!peer.last_sent && idle) endpoints_.send_last(peer);
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
    for (UcxPeer& peer : endpoints_.peers()) all &= drained(peer);
    if (all || clock_.now_ns() > latest_ns) return;
    sched_yield();
  }
}

void UcxWorker::end() {
  if (over()) return;
  if (!ucp_.context().own_process()) return ucp_.abandon();
  ending_ = true;
  receiver_.drop_all();
  endpoints_.close_all(kEndTimeoutNs);
  // UCX aborts the process if an endpoint with queued requests is destroyed. Endpoints that cannot detect failures
  // cannot be closed by force either. If such endpoints have queued requests, the worker is kept until the process
  // ends.
  if (!endpoints_.detects_failures() && endpoints_.busy()) {
    ucp_.retain(receiver_.take_slots());
  } else {
    sender_.release_keys();
    ucp_.destroy();
  }
}

}  // namespace tutti
