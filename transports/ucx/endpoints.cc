#include "transports/ucx/endpoints.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "transports/ucx/resources.h"
#include "transports/ucx/sender.h"

namespace tutti {
namespace {

// Delay before an error of UCX is reported. If the peer has died, its TCP connections usually show that within this
// time, with a more precise reason.
constexpr std::int64_t kErrorDelayNs = 300'000'000;

}  // namespace

UcxEndpoints::UcxEndpoints(UcpWorker& ucp, HandshakeChannel& channel, const DataPathOptions& options)
    : ucp_(ucp), handshake_channel_(channel), options_(options), peers_(options.ranks) {
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    peers_[rank].rank = rank;
    peers_[rank].endpoints = this;
  }
}

Status UcxEndpoints::set_up() {
  auto address = ucp_.address();
  if (!address) return address.error();
  if (getrandom(&key_, sizeof(key_), 0) != sizeof(key_)) return socket_error("getrandom", errno);
  const UcxHandshake mine{.key = key_, .slots = options_.slots, .slot_bytes = options_.slot_bytes};
  handshake_message_.assign(reinterpret_cast<const char*>(&mine), sizeof(mine));
  handshake_message_ += *address;
  if (handshake_message_.size() <= HandshakeChannel::kMaxMessageBytes) return {};
  return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
               fmt::format("UCX {}: this rank's address has {} bytes: name fewer devices in UCX_NET_DEVICES",
                           ucp_.functions().version, address->size())};
}

UcxLane& UcxEndpoints::lane(UcxPeer& peer, std::uint16_t number) {
  if (peer.lanes.empty()) {
    peer.lanes.resize(options_.lanes);
    for (std::size_t i = 0; i < peer.lanes.size(); ++i) {
      peer.lanes[i].peer = &peer;
      peer.lanes[i].number = static_cast<std::uint16_t>(i);
    }
  }
  UcxLane& lane = peer.lanes[number];
  if (!lane.sends.empty()) return lane;
  lane.sends.resize(options_.slots);
  lane.arrivals.resize(options_.slots);
  for (UcxSend& send : lane.sends) send.lane = &lane;
  for (UcxArrived& arrived : lane.arrivals) arrived.lane = &lane;
  return lane;
}

Status UcxEndpoints::introduce(UcxPeer& peer) {
  if (peer.introduced) return {};
  TUTTI_TRY(handshake_channel_.send(peer.rank, 0, handshake_message_));
  peer.introduced = true;
  unconnected_.push_back(&peer);
  return {};
}

void UcxEndpoints::connect_waiting() {
  if (unconnected_.empty()) return;
  std::erase_if(unconnected_, [this](UcxPeer* peer) { return connect(*peer); });
}

// Makes the endpoint when the handshake message of the peer has arrived. Returns true if the message has arrived (or
// malformed data in its place), whether or not the endpoint works.
bool UcxEndpoints::connect(UcxPeer& peer) {
  const std::optional<std::string> text = handshake_channel_.take(peer.rank, 0);
  if (!text && handshake_channel_.corrupt(peer.rank)) {
    peer.error_words = handshake_channel_.trouble();
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
  const std::vector<UcxResource> resources = resources_of(ucp_.functions(), peer.endpoint);
  peer.resources = describe(resources);
  const bool by_card =
      !no_failure_detection_ && std::any_of(resources.begin(), resources.end(), [](const UcxResource& resource) {
        return is_nic_write_transport(resource.transport);
      });
  peer.writes = by_card || ucp_.context().puts() == UcxPuts::kAlways;
  peer.connected = true;
  for (UcxLane& lane : peer.lanes) peer.sender->start(lane);
  return true;
}

ucs_status_t UcxEndpoints::make_endpoint(UcxPeer& peer, const void* address) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = static_cast<const ucp_address_t*>(address);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &UcxEndpoints::on_error, .arg = &peer};
  if (ucp_.context().detects_failures()) {
    const ucs_status_t status = ucp_.functions().ep_create(ucp_.handle(), &params, &peer.endpoint);
    if (status == UCS_OK) return status;
  }
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;  // requests no failure detection, which some transports lack
  const ucs_status_t status = ucp_.functions().ep_create(ucp_.handle(), &params, &peer.endpoint);
  if (status != UCS_OK) return status;
  ucp_.context().set_no_failure_detection();
  no_failure_detection_ = true;
  return UCS_OK;
}

UcxHeader UcxEndpoints::header_to(const UcxPeer& peer, UcxMessageType kind) const {
  UcxHeader header;
  header.kind = kind;
  header.key = peer.key;
  header.sender = options_.rank;
  return header;
}

void UcxEndpoints::send_last(UcxPeer& peer) {
  peer.last_sent = true;
  peer.last = header_to(peer, UcxMessageType::kLast);
  void* request = post(peer, peer.last, {}, &UcxEndpoints::on_last, &peer);
  peer.last_going = UCS_PTR_IS_PTR(request);
  if (UCS_PTR_IS_ERR(request)) fail(peer, UCS_PTR_STATUS(request), "sending");
}

void UcxEndpoints::on_last(void* request, ucs_status_t status, void* peer) {
  UcxPeer& reported = *static_cast<UcxPeer*>(peer);
  reported.endpoints->ucp_.in_callback([&] {
    reported.last_going = false;
    reported.endpoints->ucp_.functions().request_free(request);
    if (status != UCS_OK) reported.endpoints->fail(reported, status, "sending");
  });
}

void UcxEndpoints::fail(UcxPeer& peer, ucs_status_t status, std::string_view doing) {
  if (peer.dead() || ucp_.over()) return;
  peer.error = status;
  peer.error_ns = clock_.now_ns();
  if (peer.error_words.empty()) {
    peer.error_words = fmt::format("{}{}{}", ucp_.functions().status_string(status), doing.empty() ? "" : ", ", doing);
  }
  // Messages that were not passed to UCX are dropped.
  for (UcxLane& lane : peer.lanes) {
    unfinished_ -= lane.sent - lane.started;
    lane.started = lane.sent;
  }
  failed_.push_back(&peer);
}

void UcxEndpoints::on_error(void* peer, ucp_ep_h, ucs_status_t status) {
  UcxPeer& failed = *static_cast<UcxPeer*>(peer);
  failed.endpoints->ucp_.in_callback([&] { failed.endpoints->fail(failed, status, ""); });
}

void UcxEndpoints::close(UcxPeer& peer) {
  if (no_failure_detection_ || peer.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_.functions().ep_close_nbx(std::exchange(peer.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void UcxEndpoints::close_failed() {
  if (failed_.empty() && closing_.empty()) return;
  for (UcxPeer* peer : failed_) close(*peer);
  failed_.clear();
  std::erase_if(closing_, [this](void* request) {
    if (ucp_.functions().request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_.functions().request_free(request);
    return true;
  });
}

void UcxEndpoints::close_all(std::int64_t timeout_ns) {
  for (UcxPeer& peer : peers_) close(peer);
  const std::int64_t latest_ns = clock_.now_ns() + timeout_ns;
  do {
    ucp_.progress();
    close_failed();
  } while (!closing_.empty() && clock_.now_ns() < latest_ns);
}

bool UcxEndpoints::busy() const {
  return unfinished_ > 0 || !closing_.empty() || std::any_of(peers_.begin(), peers_.end(), [](const UcxPeer& peer) {
           return peer.last_going || std::any_of(peer.lanes.begin(), peer.lanes.end(), [](const UcxLane& lane) {
                    return lane.credit_going || lane.offer_going ||
                           std::any_of(lane.arrivals.begin(), lane.arrivals.end(), [](const UcxArrived& message) {
                             return message.state == UcxArrived::State::kFetching;
                           });
                  });
         });
}

std::optional<std::string> UcxEndpoints::broken(std::uint32_t rank) {
  const UcxPeer& peer = peers_[rank];
  if (!peer.dead() || peer.left || clock_.now_ns() - peer.error_ns < kErrorDelayNs) return std::nullopt;
  return fmt::format("UCX {}{}: {}", ucp_.functions().version, peer.resources.empty() ? "" : " by " + peer.resources,
                     peer.error_words);
}

std::string UcxEndpoints::troubles() const {
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
  return text;
}

}  // namespace tutti
