#include "transports/ucx/receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

// Alignment in bytes that a payload needs to remain in memory of UCX.
constexpr std::size_t kAligned = 16;

}  // namespace

// ---- messages ----

ucs_status_t UcxReceiver::take(UcxLane& lane, const UcxHeader& header, void* data, std::size_t bytes,
                               std::uint64_t how) {
  const std::uint32_t slots = endpoints_.options().slots;
  const std::uint32_t ahead = header.number - static_cast<std::uint32_t>(lane.released);
  const std::uint64_t number = lane.released + ahead;
  UcxArrived& message = lane.arrivals[number % slots];
  const bool written = header.kind == UcxMessageType::kWritten && lane.slots != nullptr;
  if ((header.kind != UcxMessageType::kMessage && !written) || ahead >= slots ||
      message.state != UcxArrived::State::kEmpty || bytes != (written ? 0 : header.bytes) ||
      header.bytes > endpoints_.options().slot_bytes || header.tag.sequence == 0) {
    lane.corrupt = true;
    return UCS_OK;
  }
  message.header = header;
  lane.seen = std::max(lane.seen, number + 1);
  queue_report(lane);
  if (!written) {
    if (header.bytes >= kUcxPutFrom && lane.peer->writes) queue_offer(lane);
    return keep(message, data, how);
  }
  message.state = UcxArrived::State::kComplete;
  message.data = lane.slots->slot(number);
  return UCS_OK;
}

ucs_status_t UcxReceiver::keep(UcxArrived& message, void* data, std::uint64_t how) {
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
  if (message.memory == nullptr) message.memory = make_page_bytes(endpoints_.options().slot_bytes);
  if (message.header.bytes > 0) std::memcpy(message.memory.get(), data, message.header.bytes);
  message.data = message.memory.get();
  return UCS_OK;
}

void UcxReceiver::fetch(UcxArrived& message) {
  if (message.memory == nullptr) message.memory = make_page_bytes(endpoints_.options().slot_bytes);
  message.data = message.memory.get();
  message.state = UcxArrived::State::kFetching;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.user_data = &message;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.recv_am = &UcxReceiver::on_fetched;
  void* request = ucp_.functions().am_recv_data_nbx(ucp_.handle(), std::exchange(message.kept, nullptr),
                                                    message.memory.get(), message.header.bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  if (request == nullptr) {
    message.state = UcxArrived::State::kComplete;
  } else {
    endpoints_.fail(*message.lane->peer, UCS_PTR_STATUS(request), "receiving");
  }
}

void UcxReceiver::on_fetched(void* request, ucs_status_t status, std::size_t bytes, void* message) {
  UcxArrived& fetched = *static_cast<UcxArrived*>(message);
  UcxPeer& peer = *fetched.lane->peer;
  UcxReceiver& self = *peer.receiver;
  self.ucp_.in_callback([&] {
    self.ucp_.functions().request_free(request);
    if (status == UCS_OK && bytes == fetched.header.bytes) {
      fetched.state = UcxArrived::State::kComplete;
    } else {
      self.endpoints_.fail(peer, status == UCS_OK ? UCS_ERR_MESSAGE_TRUNCATED : status, "receiving");
    }
  });
}

void UcxReceiver::release(UcxLane& lane, UcxArrived& message) {
  TUTTI_ASSERT(message.state == UcxArrived::State::kComplete || ucp_.over());
  if (message.kept != nullptr && !ucp_.over()) ucp_.functions().am_data_release(ucp_.handle(), message.kept);
  message.kept = nullptr;
  message.data = nullptr;
  message.state = UcxArrived::State::kEmpty;
  ++lane.released;
  lane.unreported_bytes += ucx_message_bytes(message.header);
  queue_report(lane);
}

void UcxReceiver::fetch_announced() {
  // fetch() runs no callback, so the list does not grow meanwhile.
  for (UcxArrived* message : announced_) fetch(*message);
  announced_.clear();
}

void UcxReceiver::drop_all() {
  for (UcxPeer& peer : endpoints_.peers()) {
    for (UcxLane& lane : peer.lanes) {
      for (UcxArrived& message : lane.arrivals) {
        if (message.kept != nullptr) {
          ucp_.functions().am_data_release(ucp_.handle(), std::exchange(message.kept, nullptr));
        }
      }
    }
  }
  announced_.clear();
  offering_.clear();
}

// ---- credits ----

// Queues the lane for a report of its released messages, if the sender needs that report.
void UcxReceiver::queue_report(UcxLane& lane) {
  const std::uint64_t unreported = lane.released - lane.reported;
  if (lane.report_queued || unreported == 0) return;
  if (2 * unreported < endpoints_.options().slots && lane.seen - lane.reported < endpoints_.options().slots &&
      lane.unreported_bytes < kUcxReportBytes)
    return;
  lane.report_queued = true;
  reports_queue_.push_back(&lane);
}

void UcxReceiver::report_released(UcxLane& lane) {
  UcxPeer& peer = *lane.peer;
  lane.credit = endpoints_.header_to(peer, UcxMessageType::kCredit);
  lane.credit.lane = lane.number;
  lane.credit.released = static_cast<std::uint32_t>(lane.released);
  lane.reported = lane.released;
  lane.unreported_bytes = 0;
  void* request = endpoints_.post(peer, lane.credit, {}, &UcxReceiver::on_reported, &lane);
  lane.credit_going = UCS_PTR_IS_PTR(request);
  if (UCS_PTR_IS_ERR(request)) endpoints_.fail(peer, UCS_PTR_STATUS(request), "sending");
}

void UcxReceiver::on_reported(void* request, ucs_status_t status, void* lane) {
  UcxLane& reported = *static_cast<UcxLane*>(lane);
  UcxReceiver& self = *reported.peer->receiver;
  self.ucp_.in_callback([&] {
    reported.credit_going = false;
    self.ucp_.functions().request_free(request);
    if (status != UCS_OK) self.endpoints_.fail(*reported.peer, status, "sending");
  });
}

void UcxReceiver::report_all() {
  std::erase_if(reports_queue_, [this](UcxLane* lane) {
    const UcxPeer& peer = *lane->peer;
    if (!peer.dead() && lane->released != lane->reported) {
      if (!peer.connected || lane->credit_going) return false;
      report_released(*lane);
    }
    lane->report_queued = false;
    return true;
  });
}

// ---- slots for long messages ----

// Runs within callbacks of UCX, so it only queues the lane. offer_slots() does the rest.
void UcxReceiver::queue_offer(UcxLane& lane) {
  if (lane.offers) return;
  lane.offers = true;
  offering_.push_back(&lane);
}

// Creates the slots of a lane and advertises them. Returns true if nothing more must be done for this lane.
bool UcxReceiver::offer_slots(UcxLane& lane) {
  UcxPeer& peer = *lane.peer;
  if (peer.dead()) return true;
  if (!peer.connected) return false;
  auto slots = UcxSlots::create(ucp_.shared_context(), endpoints_.options().slots, endpoints_.options().slot_bytes);
  if (!slots) {
    endpoints_.note_no_slots(slots.error().message);
    return true;
  }
  lane.slots = std::move(*slots);
  lane.offer = endpoints_.header_to(peer, UcxMessageType::kOffer);
  lane.offer.lane = lane.number;
  lane.offer.bytes = static_cast<std::uint32_t>(lane.slots->offer().size());
  lane.offer.released = static_cast<std::uint32_t>(lane.released);
  void* request = endpoints_.post(peer, lane.offer, lane.slots->offer(), &UcxReceiver::on_offered, &lane);
  lane.offer_going = UCS_PTR_IS_PTR(request);
  if (UCS_PTR_IS_ERR(request)) endpoints_.fail(peer, UCS_PTR_STATUS(request), "sending");
  return true;
}

void UcxReceiver::on_offered(void* request, ucs_status_t status, void* lane) {
  UcxLane& reported = *static_cast<UcxLane*>(lane);
  UcxReceiver& self = *reported.peer->receiver;
  self.ucp_.in_callback([&] {
    reported.offer_going = false;
    self.ucp_.functions().request_free(request);
    if (status != UCS_OK) self.endpoints_.fail(*reported.peer, status, "sending");
  });
}

void UcxReceiver::offer_slots() {
  if (!offering_.empty()) std::erase_if(offering_, [this](UcxLane* lane) { return offer_slots(*lane); });
}

std::vector<std::unique_ptr<UcxSlots>> UcxReceiver::take_slots() {
  std::vector<std::unique_ptr<UcxSlots>> slots;
  for (UcxPeer& peer : endpoints_.peers()) {
    for (UcxLane& lane : peer.lanes) {
      if (lane.slots != nullptr) slots.push_back(std::move(lane.slots));
    }
  }
  return slots;
}

}  // namespace tutti
