#include "transports/ucx/worker.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/thread.h"
#include "transports/ucx/ways.h"

namespace tutti {
namespace {

constexpr unsigned kMessageId = 1;  // of UCX's active messages
// What UCX has done with may still wait in this process for room in a socket, and to ask UCX (a flush) takes the peer's
// help. So bytes count as gone when the peer has told to have released them, up to those that a socket holds at least.
// Receivers tell of so many that what is left untold on all lanes that plans use, and between two ranks, is less.
constexpr std::uint64_t kSystemTakes = 64 * 1024;
constexpr std::uint64_t kBusyLanes = 2;  // whose calls end at the same time: a collective's, and that of sends
constexpr std::uint64_t kToldBytes = kSystemTakes / (kPointToPointLane + 2);
constexpr std::int64_t kErrorRestsNs = 300'000'000;  // a peer that has gone is better named by its TCP connections

}  // namespace

UcxWorker::UcxWorker(std::shared_ptr<UcxContext> context, const DataPathHost& host, const DataPathOptions& options)
    : context_(std::move(context)),
      ucx_(context_->library()),
      options_(options),
      introductions_(&host.introductions),
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
  if (status != UCS_OK) return ucx_error(worker->ucx_, "asking for what wakes a sleeper", status);
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
  const SignalsBlocked blocked;  // UCX starts a thread of its own
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
  const UcxIntroduction mine{.key = key_, .slots = options_.slots, .slot_bytes = options_.slot_bytes};
  introduction_.assign(reinterpret_cast<const char*>(&mine), sizeof(mine));
  introduction_.append(reinterpret_cast<const char*>(address), address_bytes);
  ucx_.worker_release_address(worker_, address);
  if (introduction_.size() <= Introductions::kMostIntroduction) return {};
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
    TUTTI_TRY(introductions_->introduce(rank, 0, introduction_));
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

// Once the peer has introduced itself. True when it has, whatever came of it.
bool UcxWorker::connect(UcxPeer& peer) {
  const std::optional<std::string> text = introductions_->take(peer.rank, 0);
  if (!text && introductions_->corrupt(peer.rank)) {
    peer.error_words = introductions_->trouble();
    fail(peer, UCS_ERR_INVALID_ADDR, "");
    return true;
  }
  if (!text) return false;
  UcxIntroduction theirs;
  if (text->size() > sizeof(theirs)) std::memcpy(&theirs, text->data(), sizeof(theirs));
  if (text->size() <= sizeof(theirs) || theirs.magic != kUcxMagic || theirs.version != UcxIntroduction().version ||
      theirs.slots != options_.slots || theirs.slot_bytes != options_.slot_bytes) {
    peer.error_words = "it has introduced itself as no rank of this version does";
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
  const std::vector<UcxWay> ways = ways_of(ucx_, peer.endpoint);
  peer.way = describe(ways);
  const bool by_card = !no_failures_ && std::any_of(ways.begin(), ways.end(),
                                                    [](const UcxWay& way) { return writes_by_card(way.transport); });
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
  if (context_->tells_of_ends()) {
    const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
    if (status == UCS_OK) return status;
  }
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;  // not every transport can tell of a peer's end
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status != UCS_OK) return status;
  context_->tells_of_no_ends();
  no_failures_ = true;
  return UCS_OK;
}

void UcxWorker::fail(UcxPeer& peer, ucs_status_t status, std::string_view doing) {
  if (peer.dead() || over()) return;
  peer.error = status;
  peer.error_ns = clock_.now_ns();
  if (peer.error_words.empty()) {
    peer.error_words = fmt::format("{}{}{}", ucx_.status_string(status), doing.empty() ? "" : ", ", doing);
  }
  for (UcxLane& lane : peer.lanes) {  // what UCX has not had, it will not have
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

// Not within UCX's own callbacks.
void UcxWorker::close_failed() {
  for (UcxPeer* peer : failed_) {
    if (!no_failures_) close(*peer);
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
  if (!peer.dead() || peer.left || clock_.now_ns() - peer.error_ns < kErrorRestsNs) return std::nullopt;
  return fmt::format("UCX {}{}: {}", ucx_.version, peer.way.empty() ? "" : " by " + peer.way, peer.error_words);
}

std::string UcxWorker::troubles() const {
  std::string text;
  for (const UcxPeer& peer : peers_) {
    if (!peer.dead() || peer.left) continue;
    text += fmt::format("{}UCX to rank {}: {}", text.empty() ? "" : "; ", peer.rank, peer.error_words);
  }
  for (const UcxPeer* peer : unconnected_) {
    text += fmt::format("{}rank {} has not told its UCX address", text.empty() ? "" : "; ", peer->rank);
  }
  if (no_failures_) {
    text += fmt::format("{}UCX does not tell of a peer's end over the transports that UCX_TLS leaves it",
                        text.empty() ? "" : "; ");
  }
  if (!no_slots_.empty()) text += (text.empty() ? "" : "; ") + no_slots_;
  if (refused_ > 0) text += fmt::format("{}refused {} messages of strangers", text.empty() ? "" : "; ", refused_);
  return text;
}

// ---- sending ----

UcxHeader UcxWorker::header_to(const UcxPeer& peer, UcxKind kind) const {
  UcxHeader header;
  header.kind = kind;
  header.key = peer.key;
  header.sender = options_.rank;
  return header;
}

// One active message; what comes back is UCX's. The header and the data stay as they are until `done` is called.
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

// Gives UCX what it has not had.
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

// The active message, with the payload or without.
void UcxWorker::start_message(UcxSend& message) {
  UcxLane& lane = *message.lane;
  if (lane.peer->dead()) return finish(message);
  message.header.released = static_cast<std::uint32_t>(lane.released);
  lane.told = lane.released;
  lane.untold_bytes = 0;
  const bool written = message.header.kind == UcxKind::kWritten;
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

// Of messages that the peer has not told to have released.
std::uint64_t UcxWorker::unconfirmed_bytes(const UcxLane& lane) const {
  std::uint64_t bytes = 0;
  for (std::uint64_t number = lane.credited; number < lane.started; ++number) {
    bytes += ucx_message_bytes(lane.sends[number % options_.slots].header);
  }
  return bytes;
}

// Of this lane alone: what another call has sent, and nobody reads yet, holds up nobody here. Never to a peer whose
// endpoint is broken, unless it left by itself: who waits learns that it cannot be reached.
bool UcxWorker::gone(const UcxLane& lane) const {
  if (lane.peer->dead()) return lane.peer->left;
  return unconfirmed_bytes(lane) <= kSystemTakes / kBusyLanes;
}

bool UcxWorker::handed_over(UcxLane& lane) {
  if (!delivered(lane)) return false;
  if (over() || gone(lane)) return true;
  progress();
  return gone(lane);
}

// ---- credits ----

// Queues the lane to tell what it has released, where the sender needs to know.
void UcxWorker::owe(UcxLane& lane) {
  const std::uint64_t untold = lane.released - lane.told;
  if (lane.owes || untold == 0) return;
  if (2 * untold < options_.slots && lane.seen - lane.told < options_.slots && lane.untold_bytes < kToldBytes) return;
  lane.owes = true;
  owing_.push_back(&lane);
}

void UcxWorker::tell(UcxLane& lane) {
  UcxPeer& peer = *lane.peer;
  lane.credit = header_to(peer, UcxKind::kCredit);
  lane.credit.lane = lane.number;
  lane.credit.released = static_cast<std::uint32_t>(lane.released);
  lane.told = lane.released;
  lane.untold_bytes = 0;
  void* request = post(peer, lane.credit, {}, &UcxWorker::on_told, &lane);
  lane.credit_going = UCS_PTR_IS_PTR(request);
  if (UCS_PTR_IS_ERR(request)) fail(peer, UCS_PTR_STATUS(request), "sending");
}

void UcxWorker::on_told(void* request, ucs_status_t status, void* lane) {
  UcxLane& told = *static_cast<UcxLane*>(lane);
  told.peer->worker->in_callback([&] {
    told.credit_going = false;
    told.peer->worker->ucx_.request_free(request);
    if (status != UCS_OK) told.peer->worker->fail(*told.peer, status, "sending");
  });
}

bool UcxWorker::flush() {
  if (over()) return true;
  std::erase_if(owing_, [this](UcxLane* lane) {
    const UcxPeer& peer = *lane->peer;
    if (!peer.dead() && lane->released != lane->told) {
      if (!peer.connected || lane->credit_going) return false;
      tell(*lane);
    }
    lane->owes = false;
    return true;
  });
  if (unfinished_ > 0) progress();
  return unfinished_ == 0 && owing_.empty();
}

}  // namespace tutti
