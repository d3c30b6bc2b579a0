#include "transports/ucx/worker.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/thread.h"
#include "transports/ucx/resources.h"

namespace tutti {
namespace {

constexpr unsigned kMessageId = 1;  // id of our active messages in UCX
// When UCX reports that a send is complete, its data may still wait in this process for space in a socket, and a UCX
// flush would need the cooperation of the peer. So handed_over() counts the bytes that the peer has not reported as
// released. If they are at most as many as a socket buffer certainly holds (kSystemTakes), the operating system has
// all of them. Receivers report releases at least every kReportBytes bytes, so the unreported bytes of all lanes
// between two ranks, which plans and sends use, stay below that limit.
constexpr std::uint64_t kSystemTakes = 64 * 1024;
// Lanes with calls that can end at the same time: one of a collective, and the lane of sends.
constexpr std::uint64_t kBusyLanes = 2;
constexpr std::uint64_t kReportBytes = kSystemTakes / (kPointToPointLane + 2);
// Delay before an error of UCX is reported. If the peer has died, its TCP connections usually show that within this
// time, with a more precise reason.
constexpr std::int64_t kErrorDelayNs = 300'000'000;

}  // namespace

UcxWorker::UcxWorker(std::shared_ptr<UcxContext> context, const DataPathHost& host, const DataPathOptions& options)
    : context_(std::move(context)),
      ucx_(context_->library()),
      options_(options),
      handshake_channel_(&host.handshake_channel),
      links_(&host.links),
      peers_(options.ranks) {
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    peers_[rank].rank = rank;
    peers_[rank].worker = this;
  }
}

Result<std::shared_ptr<UcxWorker>> UcxWorker::create(std::shared_ptr<UcxContext> context, const DataPathHost& host,
                                                     const DataPathOptions& options) {
  std::shared_ptr<UcxWorker> worker(new UcxWorker(std::move(context), host, options));  // private constructor
  TUTTI_TRY(worker->set_up());
  int wake = -1;
  const ucs_status_t status = worker->ucx_.worker_get_efd(worker->worker_, &wake);
  if (status != UCS_OK) return ucx_error(worker->ucx_, "getting the descriptor that wakes a sleeping thread", status);
  TUTTI_TRY(host.links.doorbell().add_wait_source(wake));
  host.links.doorbell().add_armed([weak = std::weak_ptr(worker)] {
    const auto living = weak.lock();
    if (living != nullptr && !living->arm()) living->links_->doorbell().stay_awake();
  });
  return worker;
}

Status UcxWorker::set_up() {
  if (getrandom(&key_, sizeof(key_), 0) != sizeof(key_)) return socket_error("getrandom", errno);
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.am_alignment = 64;
  const SignalsBlocked blocked;  // UCX starts a thread, which must not receive signals
  ucs_status_t status = ucx_.worker_create(context_->handle(), &params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return ucx_error(ucx_, "making a worker", status);
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &UcxWorker::on_message;
  handler.arg = this;
  status = ucx_.worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return ucx_error(ucx_, "setting the handler of messages", status);
  ucp_address_t* address = nullptr;
  std::size_t address_bytes = 0;
  status = ucx_.worker_get_address(worker_, &address, &address_bytes);
  if (status != UCS_OK) return ucx_error(ucx_, "asking for the worker's address", status);
  const UcxHandshake mine{.key = key_, .slots = options_.slots, .slot_bytes = options_.slot_bytes};
  handshake_message_.assign(reinterpret_cast<const char*>(&mine), sizeof(mine));
  handshake_message_.append(reinterpret_cast<const char*>(address), address_bytes);
  ucx_.worker_release_address(worker_, address);
  if (handshake_message_.size() <= HandshakeChannel::kMaxMessageBytes) return {};
  return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
               fmt::format("UCX {}: this rank's address has {} bytes: name fewer devices in UCX_NET_DEVICES",
                           ucx_.version, address_bytes)};
}

UcxWorker::~UcxWorker() { end(); }

// ---- peers ----

Result<UcxLane*> UcxWorker::open(std::uint32_t rank, std::uint16_t lane) {
  UcxPeer& peer = peers_[rank];
  use_peer(peer);
  UcxLane& opened = peer.lanes[lane];
  use(opened);
  if (!peer.introduced && !over()) {
    TUTTI_TRY(handshake_channel_->send(rank, 0, handshake_message_));
    peer.introduced = true;
    unconnected_.push_back(&peer);
  }
  return &opened;
}

void UcxWorker::use_peer(UcxPeer& peer) {
  if (!peer.lanes.empty()) return;
  peer.lanes.resize(options_.lanes);
  for (std::size_t i = 0; i < peer.lanes.size(); ++i) {
    peer.lanes[i].peer = &peer;
    peer.lanes[i].number = static_cast<std::uint16_t>(i);
  }
}

void UcxWorker::use(UcxLane& lane) {
  if (!lane.sends.empty()) return;
  lane.sends.resize(options_.slots);
  lane.arrivals.resize(options_.slots);
  for (UcxSend& send : lane.sends) send.lane = &lane;
  for (UcxArrived& arrived : lane.arrivals) arrived.lane = &lane;
}

// Makes the endpoint when the handshake message of the peer has arrived. Returns true if it has arrived, whether or
// not the endpoint works.
bool UcxWorker::connect(UcxPeer& peer) {
  const std::optional<std::string> text = handshake_channel_->take(peer.rank, 0);
  if (!text && handshake_channel_->corrupt(peer.rank)) {
    peer.error_words = handshake_channel_->trouble();
    fail(peer, UCS_ERR_INVALID_ADDR, "");
    return true;
  }
  if (!text) return false;
  UcxHandshake theirs;
  if (text->size() > sizeof(theirs)) std::memcpy(&theirs, text->data(), sizeof(theirs));
  if (text->size() <= sizeof(theirs) || theirs.magic != kUcxMagic || theirs.version != UcxHandshake().version ||
      theirs.slots != options_.slots || theirs.slot_bytes != options_.slot_bytes) {
    peer.error_words = "its handshake message is malformed, or from a rank with another version or other settings";
    fail(peer, UCS_ERR_INVALID_ADDR, "");
    return true;
  }
  peer.key = theirs.key;
  const ucs_status_t status = make_endpoint(peer, text->data() + sizeof(theirs));
  if (status != UCS_OK) {
    peer.endpoint = nullptr;
    fail(peer, status, "making an endpoint (are UCX_TLS and UCX_NET_DEVICES the same on both ranks?)");
    return true;
  }
  const std::vector<UcxResource> resources = resources_of(ucx_, peer.endpoint);
  peer.resources = describe(resources);
  const bool by_card =
      !no_failure_detection_ && std::any_of(resources.begin(), resources.end(), [](const UcxResource& resource) {
        return is_nic_write_transport(resource.transport);
      });
  peer.writes = by_card || context_->puts() == UcxPuts::kAlways;
  peer.connected = true;
  for (UcxLane& lane : peer.lanes) start(lane);
  return true;
}

ucs_status_t UcxWorker::make_endpoint(UcxPeer& peer, const void* address) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = static_cast<const ucp_address_t*>(address);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &UcxWorker::on_error, .arg = &peer};
  if (context_->detects_failures()) {
    const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
    if (status == UCS_OK) return status;
  }
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;  // not every transport can detect the failure of a peer
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status != UCS_OK) return status;
  context_->set_no_failure_detection();
  no_failure_detection_ = true;
  return UCS_OK;
}

void UcxWorker::fail(UcxPeer& peer, ucs_status_t status, std::string_view doing) {
  if (peer.dead() || over()) return;
  peer.error = status;
  peer.error_ns = clock_.now_ns();
  if (peer.error_words.empty()) {
    peer.error_words = fmt::format("{}{}{}", ucx_.status_string(status), doing.empty() ? "" : ", ", doing);
  }
  // Messages that were not passed to UCX are dropped.
  for (UcxLane& lane : peer.lanes) {
    unfinished_ -= lane.sent - lane.started;
    lane.started = lane.sent;
  }
  failed_.push_back(&peer);
}

void UcxWorker::on_error(void* peer, ucp_ep_h, ucs_status_t status) {
  UcxPeer& failed = *static_cast<UcxPeer*>(peer);
  failed.worker->in_callback([&] { failed.worker->fail(failed, status, ""); });
}

void UcxWorker::close(UcxPeer& peer) {
  if (peer.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucx_.ep_close_nbx(std::exchange(peer.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

// Closes the endpoints of peers that have failed. UCX does not permit that within its own callbacks.
void UcxWorker::close_failed() {
  for (UcxPeer* peer : failed_) {
    if (!no_failure_detection_) close(*peer);
  }
  failed_.clear();
  std::erase_if(closing_, [this](void* request) {
    if (ucx_.request_check_status(request) == UCS_INPROGRESS) return false;
    ucx_.request_free(request);
    return true;
  });
}

std::optional<std::string> UcxWorker::broken(std::uint32_t rank) {
  const UcxPeer& peer = peers_[rank];
  if (!peer.dead() || peer.left || clock_.now_ns() - peer.error_ns < kErrorDelayNs) return std::nullopt;
  return fmt::format("UCX {}{}: {}", ucx_.version, peer.resources.empty() ? "" : " by " + peer.resources,
                     peer.error_words);
}

std::string UcxWorker::troubles() const {
  std::string text;
  for (const UcxPeer& peer : peers_) {
    if (!peer.dead() || peer.left) continue;
    text += fmt::format("{}UCX to rank {}: {}", text.empty() ? "" : "; ", peer.rank, peer.error_words);
  }
  for (const UcxPeer* peer : unconnected_) {
    text += fmt::format("{}rank {} has not sent its UCX address yet", text.empty() ? "" : "; ", peer->rank);
  }
  if (no_failure_detection_) {
    text += fmt::format("{}UCX cannot detect the failure of a peer with the transports that UCX_TLS permits",
                        text.empty() ? "" : "; ");
  }
  if (!no_slots_.empty()) text += (text.empty() ? "" : "; ") + no_slots_;
  if (refused_ > 0)
    text += fmt::format("{}refused {} messages that no peer has sent", text.empty() ? "" : "; ", refused_);
  return text;
}

// ---- sending ----

UcxHeader UcxWorker::header_to(const UcxPeer& peer, UcxMessageType kind) const {
  UcxHeader header;
  header.kind = kind;
  header.key = peer.key;
  header.sender = options_.rank;
  return header;
}

// Sends one active message. Returns the request of UCX. The header and the data must remain unchanged until `done`
// is called.
void* UcxWorker::post(UcxPeer& peer, const UcxHeader& header, std::string_view data, ucp_send_nbx_callback_t done,
                      void* user) {
  const ucp_request_param_t param = ucx_request_param(done, user);
  return ucx_.am_send_nbx(peer.endpoint, kMessageId, &header, sizeof(header), data.data(), data.size(), &param);
}

bool UcxWorker::ready(UcxLane& lane) {
  const auto free = [&] {
    return over() || (!lane.peer->dead() && lane.sent - lane.credited < options_.slots &&
                      !lane.sends[lane.sent % options_.slots].going);
  };
  if (free()) return true;
  progress();
  return free();
}

std::byte* UcxWorker::slot(UcxLane& lane) {
  PageBytes& memory = lane.sends[lane.sent % options_.slots].memory;
  if (memory == nullptr) memory = make_page_bytes(options_.slot_bytes);
  return memory.get();
}

void UcxWorker::send(UcxLane& lane, std::uint64_t bytes, const CallTag& tag) {
  TUTTI_ASSERT(bytes <= options_.slot_bytes);
  if (over() || lane.peer->dead()) return;
  TUTTI_ASSERT(lane.sent - lane.credited < options_.slots);
  UcxSend& message = lane.sends[lane.sent % options_.slots];
  TUTTI_ASSERT(!message.going);
  message.header = {.lane = lane.number,
                    .sender = options_.rank,
                    .bytes = static_cast<std::uint32_t>(bytes),
                    .number = static_cast<std::uint32_t>(lane.sent),
                    .tag = tag};
  ++lane.sent;
  ++unfinished_;
  if (lane.peer->connected) start(lane);
}

// Passes the messages to UCX that it has not received yet.
void UcxWorker::start(UcxLane& lane) {
  UcxPeer& peer = *lane.peer;
  while (lane.started < lane.sent && !peer.dead()) {
    UcxSend& message = lane.sends[lane.started % options_.slots];
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
void UcxWorker::start_message(UcxSend& message) {
  UcxLane& lane = *message.lane;
  if (lane.peer->dead()) return finish(message);
  message.header.released = static_cast<std::uint32_t>(lane.released);
  lane.reported = lane.released;
  lane.unreported_bytes = 0;
  const bool written = message.header.kind == UcxMessageType::kWritten;
  const std::string_view data(reinterpret_cast<const char*>(message.memory.get()), written ? 0 : message.header.bytes);
  void* request = post(*lane.peer, message.header, data, &UcxWorker::on_sent, &message);
  if (UCS_PTR_IS_PTR(request)) return;
  finish(message);
  if (UCS_PTR_IS_ERR(request)) fail(*lane.peer, UCS_PTR_STATUS(request), "sending");
}

void UcxWorker::finish(UcxSend& message) {
  message.going = false;
  --message.lane->going;
  --unfinished_;
}

void UcxWorker::on_sent(void* request, ucs_status_t status, void* send) {
  UcxSend& message = *static_cast<UcxSend*>(send);
  UcxPeer& peer = *message.lane->peer;
  peer.worker->in_callback([&] {
    peer.worker->finish(message);
    peer.worker->ucx_.request_free(request);
    if (status != UCS_OK) peer.worker->fail(peer, status, "sending");
  });
}

bool UcxWorker::delivered(UcxLane& lane) {
  const auto done = [&] { return over() || (lane.started == lane.sent && lane.going == 0); };
  if (done()) return true;
  progress();
  return done();
}

// Bytes of the messages that the peer has not reported as released.
std::uint64_t UcxWorker::unconfirmed_bytes(const UcxLane& lane) const {
  std::uint64_t bytes = 0;
  for (std::uint64_t number = lane.credited; number < lane.started; ++number) {
    bytes += ucx_message_bytes(lane.sends[number % options_.slots].header);
  }
  return bytes;
}

// True if the operating system or the peer has all messages of this lane. Only this lane counts, because unread
// messages of another call must not delay this one. If the endpoint of the peer is broken, the result is true only
// if the peer has left properly. Otherwise the waiting caller finds that the peer is unreachable.
bool UcxWorker::is_handed_over(const UcxLane& lane) const {
  if (lane.peer->dead()) return lane.peer->left;
  return unconfirmed_bytes(lane) <= kSystemTakes / kBusyLanes;
}

bool UcxWorker::handed_over(UcxLane& lane) {
  if (!delivered(lane)) return false;
  if (over() || is_handed_over(lane)) return true;
  progress();
  return is_handed_over(lane);
}

// ---- credits ----

// Queues the lane for a report of its released messages, if the sender needs that report.
void UcxWorker::queue_report(UcxLane& lane) {
  const std::uint64_t unreported = lane.released - lane.reported;
  if (lane.report_queued || unreported == 0) return;
  if (2 * unreported < options_.slots && lane.seen - lane.reported < options_.slots &&
      lane.unreported_bytes < kReportBytes)
    return;
  lane.report_queued = true;
  reports_queue_.push_back(&lane);
}

void UcxWorker::report_released(UcxLane& lane) {
  UcxPeer& peer = *lane.peer;
  lane.credit = header_to(peer, UcxMessageType::kCredit);
  lane.credit.lane = lane.number;
  lane.credit.released = static_cast<std::uint32_t>(lane.released);
  lane.reported = lane.released;
  lane.unreported_bytes = 0;
  void* request = post(peer, lane.credit, {}, &UcxWorker::on_reported, &lane);
  lane.credit_going = UCS_PTR_IS_PTR(request);
  if (UCS_PTR_IS_ERR(request)) fail(peer, UCS_PTR_STATUS(request), "sending");
}

void UcxWorker::on_reported(void* request, ucs_status_t status, void* lane) {
  UcxLane& reported = *static_cast<UcxLane*>(lane);
  reported.peer->worker->in_callback([&] {
    reported.credit_going = false;
    reported.peer->worker->ucx_.request_free(request);
    if (status != UCS_OK) reported.peer->worker->fail(*reported.peer, status, "sending");
  });
}

bool UcxWorker::flush() {
  if (over()) return true;
  std::erase_if(reports_queue_, [this](UcxLane* lane) {
    const UcxPeer& peer = *lane->peer;
    if (!peer.dead() && lane->released != lane->reported) {
      if (!peer.connected || lane->credit_going) return false;
      report_released(*lane);
    }
    lane->report_queued = false;
    return true;
  });
  if (unfinished_ > 0) progress();
  return unfinished_ == 0 && reports_queue_.empty();
}

}  // namespace tutti
