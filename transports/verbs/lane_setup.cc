// Set-up and end of a VerbsLane: its memory and its queue pairs, the handshake of the two ends, and reports to the
// peer that a queue pair has broken.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "transports/verbs/lane.h"

namespace tutti {
namespace {

// Set in the lane number of a handshake message: "my queue pairs are ready to receive".
constexpr std::uint16_t kReadyFlag = 0x8000;
// Set in the lane number of a handshake message: "this lane has broken". The message contains the index of the queue
// pair and the reason.
constexpr std::uint16_t kBrokenFlag = 0x4000;
constexpr std::size_t kMaxReasonBytes = 256;
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

VerbsLane::VerbsLane(const VerbsLaneOptions& options, HandshakeChannel& handshake_channel)
    : options_(options),
      handshake_channel_(handshake_channel),
      parts_(options.slots, 0),
      whole_(options.slots, false) {}

Result<std::shared_ptr<VerbsLane>> VerbsLane::open(const VerbsLaneOptions& options, const std::vector<Rail>& rails,
                                                   HandshakeChannel& handshake_channel) {
  std::shared_ptr<VerbsLane> lane(new VerbsLane(options, handshake_channel));  // private constructor
  TUTTI_TRY(lane->prepare(rails));
  TUTTI_TRY(handshake_channel.send(options.peer, options.lane, lane->handshake_message()));
  return lane;
}

Status VerbsLane::prepare(const std::vector<Rail>& rails) {
  TUTTI_ASSERT(!rails.empty() && options_.slots <= 0xffff);
  const std::uint64_t half = half_bytes();
  void* const mapped = mmap(nullptr, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
                 fmt::format("no memory for a connection to rank {}: {}", options_.peer, std::strerror(errno))};
  }
  memory_ = static_cast<std::byte*>(mapped);
  // A forked child does not get this memory. Otherwise fork() would mark the pages copy-on-write, and the next write
  // of this process would go to a copy that the NIC does not see.
  static_cast<void>(madvise(mapped, 2 * half, MADV_DONTFORK));
  for (const Rail& rail : rails) {
    using Use = VerbsDevice::MemoryUse;
    VerbsDevice& device = rail.rail->device();
    ibv_mr* const source = device.register_memory(memory_, half, Use::kReadByUs);
    ibv_mr* const target = device.register_memory(memory_ + half, half, Use::kWrittenByPeers);
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
      pairs_.push_back({.rail = rail, .source = source, .target = target, .uses = {}});
      weights_.push_back(std::min(rail.rail->port().mbps, rail.remote.mbps));
      auto pair = rail.rail->create_pair(*this, pairs_.size() - 1, depth());
      if (!pair) return pair.error();
      pairs_.back().pair = pair->pair;
      pairs_.back().most_inline = pair->most_inline;
      std::uint32_t number = 0;
      // Any starting number works, so an error of getrandom() is ignored.
      static_cast<void>(getrandom(&number, sizeof(number), 0));
      pairs_.back().packet_number = number & 0xffffff;
    }
  }
  if (std::ranges::count(weights_, 0u) > 0) weights_.clear();  // the speed of some port is unknown
  return {};
}

VerbsLane::~VerbsLane() {
  close();
  if (memory_ != nullptr) munmap(memory_, 2 * half_bytes());
}

void VerbsLane::close() {
  if (stage_ == Stage::kClosed) return;
  stage_ = Stage::kClosed;
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

std::string VerbsLane::handshake_message() const {
  const HandshakeHeader header{.pairs = static_cast<std::uint32_t>(pairs_.size()),
                               .slots = options_.slots,
                               .slot_bytes = options_.slot_bytes,
                               .address = reinterpret_cast<std::uintptr_t>(receive_slot(0))};
  std::string text(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const Pair& pair : pairs_) {
    const HandshakePair one{.number = pair.pair->qp_num, .packet_number = pair.packet_number, .key = pair.target->rkey};
    text.append(reinterpret_cast<const char*>(&one), sizeof(one));
  }
  return text;
}

// Connects the queue pairs to those in the handshake message of the peer. Returns false if the message cannot be
// read, or if its options differ from those of this rank.
bool VerbsLane::accept_handshake(const std::string& text) {
  HandshakeHeader header;
  if (text.size() < sizeof(header)) return false;
  std::memcpy(&header, text.data(), sizeof(header));
  if (header.magic != kHandshakeMagic || header.pairs != pairs_.size() || header.slots != options_.slots ||
      header.slot_bytes != options_.slot_bytes ||
      text.size() != sizeof(header) + pairs_.size() * sizeof(HandshakePair)) {
    return false;
  }
  remote_slots_ = header.address;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    HandshakePair one;
    std::memcpy(&one, text.data() + sizeof(header) + i * sizeof(one), sizeof(one));
    Pair& pair = pairs_[i];
    pair.remote_number = one.number;
    pair.remote_key = one.key;
    const Status connected = pair.rail.rail->connect(
        pair.pair, {.number = one.number, .packet_number = one.packet_number & 0xffffff, .port = pair.rail.remote},
        pair.packet_number, options_.peer);
    if (!connected.ok()) fail(connected.error().message);
  }
  return true;
}

// A write that reaches a queue pair before it is ready to receive is lost, and is only sent again after a timeout.
// Therefore each side reports when its own queue pairs are ready, and sends only after the report of the other side
// has arrived.
void VerbsLane::connect() {
  if (!broken_.empty()) return;
  if (stage_ == Stage::kHandshakeSent) {
    const auto text = handshake_channel_.take(options_.peer, options_.lane);
    if (!text && handshake_channel_.corrupt(options_.peer)) fail(handshake_channel_.trouble());
    if (!text) return;
    if (!accept_handshake(*text)) {
      fail(
          fmt::format("the queue pairs of rank {} do not match those of this rank: use the same "
                      "TUTTI_RDMA_QUEUE_PAIRS and the same build of Tutti on all ranks",
                      options_.peer));
    }
    if (!broken_.empty()) return;
    const Status sent = handshake_channel_.send(options_.peer, options_.lane | kReadyFlag, "");
    if (!sent.ok()) return fail(sent.error().message);
    stage_ = Stage::kReadySent;
  }
  if (stage_ == Stage::kReadySent && handshake_channel_.take(options_.peer, options_.lane | kReadyFlag)) {
    stage_ = Stage::kConnected;
  }
}

void VerbsLane::note_reports() {
  if (stage_ == Stage::kClosed) return;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const std::string words = pairs_[i].rail.rail->device().reports().failure(pairs_[i].pair);
    if (!words.empty()) on_failure(i, words);
  }
}

void VerbsLane::probe() {
  if (stage_ != Stage::kConnected || !broken_.empty()) return;
  poll();  // a completion has a more precise reason
  for (std::size_t i = 0; i < pairs_.size() && broken_.empty(); ++i) {
    ibv_qp_attr state{};
    ibv_qp_init_attr made{};
    const int error = pairs_[i].rail.rail->library().query_qp(pairs_[i].pair, &state, IBV_QP_STATE, &made);
    const bool broken = state.qp_state == IBV_QPS_ERR || state.qp_state == IBV_QPS_SQE;
    if (error == 0 && broken) on_failure(i, "the device has taken it out of service (its state is error)");
  }
}

// Informs the peer, because it may not notice by itself: its own queue pair may still work, and it may only be
// receiving.
void VerbsLane::report_broken(std::size_t index, const std::string& words) {
  const auto number = static_cast<std::uint32_t>(index);
  std::string text(reinterpret_cast<const char*>(&number), sizeof(number));
  text += words.substr(0, kMaxReasonBytes);
  static_cast<void>(
      // Errors are ignored, because the lane has failed already.
      handshake_channel_.send(options_.peer, options_.lane | kBrokenFlag, text));
}

void VerbsLane::receive_broken_report() {
  if (stage_ == Stage::kClosed || peer_reported_broken_ || !connected()) return;
  const auto text = handshake_channel_.take(options_.peer, options_.lane | kBrokenFlag);
  std::uint32_t number = 0;
  if (!text || text->size() < sizeof(number)) return;
  std::memcpy(&number, text->data(), sizeof(number));
  peer_reported_broken_ = true;
  std::string words = text->substr(sizeof(number), kMaxReasonBytes);
  for (char& c : words) c = c >= ' ' && c <= '~' ? c : '?';  // sent by a peer, so it may contain anything
  const Pair& pair = pairs_[std::min<std::size_t>(number, pairs_.size() - 1)];
  fail(fmt::format("{}: rank {} says: {}", describe_pair(pair), options_.peer, words));
}

}  // namespace tutti
