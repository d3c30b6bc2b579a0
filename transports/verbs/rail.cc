#include "transports/verbs/rail.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::uint32_t kReceives = 1024;      // maximum number of posted receive requests, for all peers together
constexpr std::uint32_t kCompletions = 16384;  // capacity of the completion queue
constexpr std::uint32_t kRefillAt = 64;        // receive requests are posted again after at most this number was used
constexpr std::uint32_t kInline = 256;         // size of inline messages to request from the device, in bytes
// How long a sender waits before it tries again if no receive request is posted. The code 12 means 0.64 ms.
constexpr std::uint8_t kReceiverNotReady = 12;
// How often a sender tries again if no receive request is posted. 7 means without limit, because the TCP connection
// detects that the process of the peer has died.
constexpr std::uint8_t kTriesForReceiver = 7;
constexpr std::uint8_t kHopLimit = 64;

}  // namespace

Result<std::unique_ptr<VerbsRail>> VerbsRail::create(std::shared_ptr<VerbsDevice> device, VerbsPort port,
                                                     const VerbsSettings& settings) {
  std::unique_ptr<VerbsRail> rail(new VerbsRail(std::move(device), std::move(port), settings));  // private constructor
  TUTTI_TRY(rail->prepare());
  return rail;
}

Error VerbsRail::error_of(const std::string& what, int error) const {
  const char* advice = error == ENOMEM ? " (raise the limit of locked memory: ulimit -l)" : "";
  return {ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
          fmt::format("{} port {}: {}: {}{}", port_.device, port_.number, what, std::strerror(error), advice)};
}

Status VerbsRail::prepare() {
  const ibv_device_attr& limits = device_->limits();
  ibv_port_attr attributes{};
  if (const int error = library().query_port(device_->context(), port_.number, &attributes); error != 0) {
    return error_of("ibv_query_port", error);
  }
  longest_message_ = attributes.max_msg_sz;
  needs_route_ = (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  channel_ = library().create_comp_channel(device_->context());
  if (channel_ == nullptr) return error_of("ibv_create_comp_channel", errno);
  const int flags = fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) return error_of("fcntl", errno);
  const int completions = std::min<int>(kCompletions, limits.max_cqe);
  const int vector = settings_.rank % std::max(1, device_->context()->num_comp_vectors);
  queue_ = library().create_cq(device_->context(), completions, nullptr, channel_, vector);
  if (queue_ == nullptr) return error_of("ibv_create_cq", errno);
  device_->reports().watch(static_cast<const void*>(queue_));
  most_receives_ = std::min<std::uint32_t>(kReceives, static_cast<std::uint32_t>(limits.max_srq_wr));
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr = most_receives_;
  wanted.attr.max_sge = 1;
  receives_ = library().create_srq(device_->domain(), &wanted);
  if (receives_ == nullptr) return error_of("ibv_create_srq", errno);
  device_->reports().watch(static_cast<const void*>(receives_));
  missing_receives_ = most_receives_;
  refill();
  return missing_receives_ == 0 ? Status() : error_of("ibv_post_srq_recv", ENOMEM);
}

VerbsRail::~VerbsRail() {
  for (const void* queue : {static_cast<const void*>(receives_), static_cast<const void*>(queue_)}) {
    device_->reports().unwatch(queue);
  }
  if (receives_ != nullptr) library().destroy_srq(receives_);
  if (queue_ != nullptr) library().destroy_cq(queue_);
  if (channel_ != nullptr) library().destroy_comp_channel(channel_);
}

// Posts the missing receive requests. They have no memory: each arrival consumes one, and for a message its immediate
// data contains the index of the slot into which the peer has written.
void VerbsRail::refill() {
  std::array<ibv_recv_wr, kRefillAt> requests{};
  while (missing_receives_ > 0) {
    const std::size_t count = std::min<std::size_t>(missing_receives_, requests.size());
    for (std::size_t i = 0; i < count; ++i) requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_srq_recv(receives_, requests.data(), &bad) != 0) {
      missing_receives_ -= bad != nullptr ? static_cast<std::uint32_t>(bad - requests.data()) : 0;
      return;
    }
    missing_receives_ -= static_cast<std::uint32_t>(count);
  }
}

Result<VerbsRail::CreatedPair> VerbsRail::create_pair(CompletionHandler& user, std::size_t pair, std::uint32_t depth) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = queue_;
  wanted.recv_cq = queue_;
  wanted.srq = receives_;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = depth;
  wanted.cap.max_send_sge = 2;
  wanted.cap.max_inline_data = kInline;
  ibv_qp* made = library().create_qp(device_->domain(), &wanted);
  // Some devices refuse more inline data than they support, so try again without inline data.
  if (made == nullptr) {
    wanted.cap.max_inline_data = 0;
    made = library().create_qp(device_->domain(), &wanted);
  }
  if (made == nullptr) return error_of("ibv_create_qp", errno);
  const std::uint32_t most_inline = wanted.cap.max_inline_data;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = 0;
  attributes.port_num = port_.number;
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  const int error =
      library().modify_qp(made, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) {
    library().destroy_qp(made);
    return error_of("a queue pair cannot be initialised", error);
  }
  device_->reports().watch(made);
  owners_[made->qp_num] = {.user = &user, .pair = pair};
  return CreatedPair{.pair = made, .most_inline = most_inline};
}

void VerbsRail::destroy_pair(ibv_qp* pair) {
  owners_.erase(pair->qp_num);
  device_->reports().unwatch(pair);
  library().destroy_qp(pair);
}

Status VerbsRail::connect(ibv_qp* pair, const RemoteQueuePair& remote, std::uint32_t packet_number,
                          std::uint32_t peer) {
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = static_cast<ibv_mtu>(std::min(port_.mtu, remote.port.mtu));
  receive.dest_qp_num = remote.number;
  receive.rq_psn = remote.packet_number;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = kReceiverNotReady;
  receive.ah_attr.port_num = port_.number;
  receive.ah_attr.sl = settings_.service_level;
  receive.ah_attr.dlid = remote.port.lid;
  const bool other_subnet = !std::equal(port_.gid.begin(), port_.gid.begin() + 8, remote.port.gid.begin());
  if (port_.ethernet || other_subnet || needs_route_) {
    receive.ah_attr.is_global = 1;
    std::memcpy(receive.ah_attr.grh.dgid.raw, remote.port.gid.data(), remote.port.gid.size());
    receive.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(port_.gid_index);
    receive.ah_attr.grh.hop_limit = kHopLimit;
    receive.ah_attr.grh.traffic_class = settings_.traffic_class;
  }
  const auto failed = [&](const char* state, int error) {
    Error told = error_of(fmt::format("queue pair {} cannot be made {} to queue pair {} of rank {} ({} port {})",
                                      pair->qp_num, state, remote.number, peer, remote.port.device, remote.port.number),
                          error);
    told.message += "; check that the networks of the two ports are connected, or set TUTTI_TRANSPORT=tcp";
    told.rank = static_cast<std::int32_t>(peer);
    return told;
  };
  int error = library().modify_qp(pair, &receive,
                                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return failed("ready to receive", error);
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = settings_.timeout;
  send.retry_cnt = settings_.retries;
  send.rnr_retry = kTriesForReceiver;
  send.sq_psn = packet_number;
  send.max_rd_atomic = 1;
  error = library().modify_qp(
      pair, &send,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? Status() : failed("ready to send", error);
}

bool VerbsRail::poll() {
  std::array<ibv_wc, 32> completions;
  bool any = false;
  int count = 0;
  do {
    count = ibv_poll_cq(queue_, static_cast<int>(completions.size()), completions.data());
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = completions[static_cast<std::size_t>(i)];
      const auto owner = owners_.find(completion.qp_num);
      const bool known = owner != owners_.end();
      if (completion.status != IBV_WC_SUCCESS) {
        if (known) {
          owner->second.user->on_failure(
              owner->second.pair,
              fmt::format("{} ({})", library().wc_status_str(completion.status), static_cast<int>(completion.status)));
        }
      } else if ((completion.opcode & IBV_WC_RECV) != 0) {
        ++missing_receives_;
        if (known) owner->second.user->on_arrival(owner->second.pair, be32toh(completion.imm_data));
      } else if (known) {
        ++send_completions_;
        owner->second.user->on_done(owner->second.pair, completion.wr_id);
      }
    }
    any |= count > 0;
    if (count < 0) unreadable_ = true;
  } while (count == static_cast<int>(completions.size()));
  if (missing_receives_ >= std::min(kRefillAt, most_receives_ / 2 + 1)) refill();
  return any;
}

std::string VerbsRail::failure() {
  std::string words = unreadable_ ? "its completion queue cannot be read any more" : "";
  for (const void* queue : {static_cast<const void*>(queue_), static_cast<const void*>(receives_)}) {
    if (const std::string why = device_->reports().failure(queue); words.empty() && !why.empty()) {
      words = fmt::format("its {} has failed: {}", queue == queue_ ? "completion queue" : "receive queue", why);
    }
  }
  return words.empty() ? words : fmt::format("{} port {}: {}", port_.device, port_.number, words);
}

void VerbsRail::arm() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  unsigned events = 0;
  while (library().get_cq_event(channel_, &queue, &context) == 0) ++events;
  if (events > 0) library().ack_cq_events(queue_, events);
  static_cast<void>(ibv_req_notify_cq(queue_, 0));
}

}  // namespace tutti
