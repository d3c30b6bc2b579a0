#include "transports/verbs/queue_pairs.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/assert.h"

namespace tutti {
namespace {

// A message has one part for each full kStripeBytes, but at least one part, and at most one for each queue pair unless
// the devices require more. See parts_of().
constexpr std::uint64_t kStripeBytes = 65536;
constexpr std::uint32_t kHandshakeMagic = 0x32425654;  // "TVB2"

struct HandshakeHeader {
  std::uint32_t magic = kHandshakeMagic;
  std::uint32_t pairs = 0;
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;
  std::uint64_t address = 0;
};

struct HandshakePair {
  std::uint32_t number = 0;
  std::uint32_t packet_number = 0;
  std::uint32_t key = 0;
};

}  // namespace

Status QueuePairs::create(const std::vector<LaneRail>& rails, const LaneMemory& memory, CompletionHandler& handler) {
  const std::uint64_t half = memory.half_bytes();
  for (const LaneRail& rail : rails) {
    VerbsDevice& device = rail.rail->device();
    ibv_mr* const source = device.register_memory(memory.send_half(), half, Use::kReadByUs);
    ibv_mr* const target = device.register_memory(memory.receive_half(), half, Use::kWrittenByPeers);
    const int error = errno;
    regions_.insert(regions_.end(), {{rail.rail, source}, {rail.rail, target}});
    if (source == nullptr || target == nullptr) {
      return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
                   fmt::format("{} port {}: {} bytes for a connection to rank {} cannot be registered: {}; raise the "
                               "limit of locked memory (ulimit -l)",
                               rail.rail->port().device, rail.rail->port().number, 2 * half, options_.peer,
                               std::strerror(error))};
    }
    for (std::uint32_t i = 0; i < options_.queue_pairs; ++i) {
      TUTTI_TRY(create_pair(rail, source, target, handler));
    }
  }
  if (std::ranges::count(weights_, 0u) > 0) weights_.clear();  // the speed of some port is unknown
  return {};
}

Status QueuePairs::create_pair(const LaneRail& rail, ibv_mr* source, ibv_mr* target, CompletionHandler& handler) {
  pairs_.push_back({.rail = rail, .source = source, .target = target, .uses = {}});
  weights_.push_back(std::min(rail.rail->port().mbps, rail.remote.mbps));
  auto pair = rail.rail->create_pair(handler, pairs_.size() - 1, depth());
  if (!pair) return pair.error();
  pairs_.back().pair = pair->pair;
  pairs_.back().most_inline = pair->most_inline;
  std::uint32_t number = 0;
  // Any starting number works, so an error of getrandom() is ignored.
  static_cast<void>(getrandom(&number, sizeof(number), 0));
  pairs_.back().packet_number = number & 0xffffff;
  return {};
}

void QueuePairs::close() {
  for (Pair& pair : pairs_) {
    if (pair.pair != nullptr) pair.rail.rail->destroy_pair(pair.pair);
    pair.pair = nullptr;
    pair.uses.clear();
  }
  for (const auto& [rail, region] : regions_) {
    if (region != nullptr) rail->library().dereg_mr(region);
  }
  regions_.clear();
}

std::string QueuePairs::handshake_message(const LaneMemory& memory) const {
  const HandshakeHeader header{.pairs = static_cast<std::uint32_t>(pairs_.size()),
                               .slots = options_.slots,
                               .slot_bytes = options_.slot_bytes,
                               .address = reinterpret_cast<std::uintptr_t>(memory.receive_half())};
  std::string text(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const Pair& pair : pairs_) {
    const HandshakePair one{.number = pair.pair->qp_num, .packet_number = pair.packet_number, .key = pair.target->rkey};
    text.append(reinterpret_cast<const char*>(&one), sizeof(one));
  }
  return text;
}

bool QueuePairs::accept_handshake(const std::string& text) {
  HandshakeHeader header;
  if (text.size() < sizeof(header)) return false;
  std::memcpy(&header, text.data(), sizeof(header));
  if (header.magic != kHandshakeMagic || header.pairs != pairs_.size() || header.slots != options_.slots ||
      header.slot_bytes != options_.slot_bytes ||
      text.size() != sizeof(header) + pairs_.size() * sizeof(HandshakePair)) {
    return false;
  }
  remote_memory_ = header.address;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    HandshakePair one;
    std::memcpy(&one, text.data() + sizeof(header) + i * sizeof(one), sizeof(one));
    Pair& pair = pairs_[i];
    pair.remote_number = one.number;
    pair.remote_key = one.key;
    const Status connected = pair.rail.rail->connect(
        pair.pair, {.number = one.number, .packet_number = one.packet_number & 0xffffff, .port = pair.rail.remote},
        pair.packet_number, options_.peer);
    if (!connected.ok()) state_.fail(connected.error().message);
  }
  return true;
}

std::string QueuePairs::describe(std::size_t index) const {
  const Pair& pair = pairs_[index];
  const VerbsPort& port = pair.rail.rail->port();
  return fmt::format("{} port {}, queue pair {} (to queue pair {} of {} port {} at rank {})", port.device, port.number,
                     pair.pair != nullptr ? pair.pair->qp_num : 0, pair.remote_number, pair.rail.remote.device,
                     pair.rail.remote.number, options_.peer);
}

std::string QueuePairs::describe_all() const {
  std::string text;
  for (std::size_t i = 0; i < pairs_.size(); ++i) text += (text.empty() ? "" : ", ") + describe(i);
  return text;
}

bool QueuePairs::has_capacity() const {
  const std::uint64_t needed = 4 + static_cast<std::uint64_t>(parts_of(options_.slot_bytes) / pairs_.size());
  return std::all_of(pairs_.begin(), pairs_.end(),
                     [&](const Pair& pair) { return pair.posted - pair.done + needed <= depth(); });
}

std::size_t QueuePairs::least_parts_of(std::uint64_t bytes) const {
  const std::uint64_t whole = sizeof(LaneHeader) + bytes;
  std::uint64_t longest = 0;
  for (const Pair& pair : pairs_) {
    const std::uint64_t most = pair.rail.rail->longest_message();
    if (most > 2 * sizeof(LaneHeader) && (longest == 0 || most < longest)) longest = most - 2 * sizeof(LaneHeader);
  }
  return static_cast<std::size_t>(longest > 0 ? (whole + longest - 1) / longest : 1);
}

std::size_t QueuePairs::parts_of(std::uint64_t bytes) const {
  const std::uint64_t striped = std::clamp<std::uint64_t>(bytes / kStripeBytes, 1, pairs_.size());
  return std::max(least_parts_of(bytes), static_cast<std::size_t>(striped));
}

void QueuePairs::post(std::size_t index, std::span<const RdmaWrite> writes) {
  TUTTI_ASSERT(!writes.empty() && writes.size() <= kMostChained);
  Pair& pair = pairs_[index];
  std::array<std::array<ibv_sge, 2>, kMostChained> parts{};
  std::array<ibv_send_wr, kMostChained> requests{};
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const RdmaWrite& write = writes[i];
    std::uint64_t bytes = 0;
    for (std::size_t k = 0; k < write.elements.size(); ++k) {
      const GatherElement& element = write.elements[k];
      parts[i][k] = {.addr = reinterpret_cast<std::uintptr_t>(element.data),
                     .length = static_cast<std::uint32_t>(element.bytes),
                     .lkey = element.key};
      bytes += element.bytes;
    }
    ibv_send_wr& request = requests[i];
    request.wr_id = ++pair.posted;
    request.next = i + 1 < writes.size() ? &requests[i + 1] : nullptr;
    request.sg_list = parts[i].data();
    request.num_sge = static_cast<int>(write.elements.size());
    request.opcode = write.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.imm_data = htobe32(write.immediate.value_or(0));
    request.wr.rdma.remote_addr = write.aim.address;
    request.wr.rdma.rkey = write.aim.key;
    if (bytes > 0 && bytes <= pair.most_inline) request.send_flags |= IBV_SEND_INLINE;
    if (write.signaled || pair.posted - pair.last_signaled >= depth() / 4) {
      request.send_flags |= IBV_SEND_SIGNALED;
      pair.last_signaled = pair.posted;
    }
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair.pair, requests.data(), &bad); error != 0) {
    note_failure(index, fmt::format("a request is refused: {}", std::strerror(error)));
  }
}

void QueuePairs::post_empty(std::size_t index, std::uint32_t immediate) {
  const RdmaWrite write{.elements = {}, .aim = remote_memory(index, 0), .immediate = immediate};
  post(index, std::span(&write, 1));
}

void QueuePairs::pin_until_done(std::size_t index, std::shared_ptr<RegistrationCache::Registration> registration) {
  Pair& pair = pairs_[index];
  pair.last_pinned = pair.posted;
  pair.uses.emplace_back(pair.posted, std::move(registration));
}

bool QueuePairs::poll() {
  bool any = false;
  const VerbsRail* last = nullptr;
  for (const Pair& pair : pairs_) {
    if (state_.is_closed()) break;
    if (pair.rail.rail != last) any |= pair.rail.rail->poll();
    last = pair.rail.rail;
  }
  return any;
}

void QueuePairs::note_done(std::size_t index, std::uint64_t number) {
  Pair& pair = pairs_[index];
  pair.done = number;
  while (!pair.uses.empty() && pair.uses.front().first <= number) pair.uses.pop_front();
}

void QueuePairs::note_failure(std::size_t index, const std::string& words) {
  VerbsRail& rail = *pairs_[index].rail.rail;
  rail.device().pump();
  const std::string trouble = rail.device().reports().trouble(rail.port().number);
  if (state_.broken().empty()) state_.report_broken(index, words);
  state_.fail(fmt::format("{}: {}{}", describe(index), words, trouble.empty() ? "" : "; " + trouble));
}

bool QueuePairs::pins_done() const {
  return state_.is_closed() ||
         (state_.broken().empty() &&
          std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.last_pinned <= pair.done; }));
}

bool QueuePairs::idle() const {
  return !state_.broken().empty() || state_.is_closed() ||
         std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.posted == pair.done; });
}

// Posts an empty write without immediate data, which the peer does not notice. Its completion implies the completion
// of all requests before it.
void QueuePairs::request_completion(std::size_t index) {
  const RdmaWrite write{.elements = {}, .aim = remote_memory(index, 0), .immediate = std::nullopt, .signaled = true};
  post(index, std::span(&write, 1));
}

void QueuePairs::ask_for_completion() {
  if (!state_.is_connected()) return;
  for (std::size_t i = 0; i < pairs_.size() && state_.broken().empty(); ++i) {
    if (pairs_[i].last_signaled != pairs_[i].posted) request_completion(i);
  }
}

void QueuePairs::note_reports() {
  if (state_.is_closed()) return;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const std::string words = pairs_[i].rail.rail->device().reports().failure(pairs_[i].pair);
    if (!words.empty()) note_failure(i, words);
  }
}

void QueuePairs::probe() {
  if (!state_.works()) return;
  poll();  // a failed completion has a more precise reason than the query below
  for (std::size_t i = 0; i < pairs_.size() && state_.broken().empty(); ++i) {
    ibv_qp_attr state{};
    ibv_qp_init_attr made{};
    const int error = pairs_[i].rail.rail->library().query_qp(pairs_[i].pair, &state, IBV_QP_STATE, &made);
    const bool broken = state.qp_state == IBV_QPS_ERR || state.qp_state == IBV_QPS_SQE;
    if (error == 0 && broken) note_failure(i, "the device has taken it out of service (its state is error)");
  }
}

std::optional<QueuePairs::PairRegistrations> QueuePairs::register_memory(Use use, std::span<const std::byte> memory) {
  PairRegistrations registrations;
  for (const Pair& pair : pairs_) {
    if (!registrations.empty() && pair.rail.rail == pairs_[registrations.size() - 1].rail.rail) {
      registrations.push_back(registrations.back());
      continue;
    }
    auto entry = pair.rail.rail->device().registrations(use)->acquire(memory);
    if (entry == nullptr) return std::nullopt;
    registrations.push_back(std::move(entry));
  }
  return registrations;
}

std::uint64_t QueuePairs::most_registered_bytes(Use use) const {
  return pairs_[0].rail.rail->device().registrations(use)->most_bytes();
}

void QueuePairs::forget(Use use, const PairRegistrations& registrations) {
  for (std::size_t i = 0; i < registrations.size(); ++i) {
    pairs_[i].rail.rail->device().registrations(use)->forget(registrations[i]);
  }
}

}  // namespace tutti
