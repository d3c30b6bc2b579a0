// VerbsLane's beginning and end: memory, queue pairs, how the two ends learn of each other, and that a queue pair has
// broken.
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

constexpr std::uint16_t kReadyLane = 0x8000;   // beside a lane's number: "my queue pairs receive now"
constexpr std::uint16_t kBrokenLane = 0x4000;  // likewise: "it has broken", which queue pair, and why
constexpr std::size_t kMostBrokenWords = 256;
constexpr std::uint32_t kIntroductionMagic = 0x32425654;  // "TVB2"

struct Greeting {
  std::uint32_t magic = kIntroductionMagic;
  std::uint32_t pairs = 0;
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;
  std::uint64_t address = 0;
};

struct GreetingPair {
  std::uint32_t number = 0;
  std::uint32_t packet_number = 0;
  std::uint32_t key = 0;
};

}  // namespace

VerbsLane::VerbsLane(const VerbsLaneOptions& options, Introductions& introductions)
    : options_(options), introductions_(introductions), parts_(options.slots, 0), whole_(options.slots, false) {}

Result<std::shared_ptr<VerbsLane>> VerbsLane::open(const VerbsLaneOptions& options, const std::vector<Rail>& rails,
                                                   Introductions& introductions) {
  std::shared_ptr<VerbsLane> lane(new VerbsLane(options, introductions));  // private constructor
  TUTTI_TRY(lane->prepare(rails));
  TUTTI_TRY(introductions.introduce(options.peer, options.lane, lane->introduction()));
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
  // A child that is forked has none of it: pages that are shared with one would be copied away from the card.
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
      static_cast<void>(getrandom(&number, sizeof(number), 0));  // any will do
      pairs_.back().packet_number = number & 0xffffff;
    }
  }
  if (std::ranges::count(weights_, 0u) > 0) weights_.clear();  // of some it is not known
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

std::string VerbsLane::introduction() const {
  const Greeting greeting{.pairs = static_cast<std::uint32_t>(pairs_.size()),
                          .slots = options_.slots,
                          .slot_bytes = options_.slot_bytes,
                          .address = reinterpret_cast<std::uintptr_t>(receive_slot(0))};
  std::string text(reinterpret_cast<const char*>(&greeting), sizeof(greeting));
  for (const Pair& pair : pairs_) {
    const GreetingPair one{.number = pair.pair->qp_num, .packet_number = pair.packet_number, .key = pair.target->rkey};
    text.append(reinterpret_cast<const char*>(&one), sizeof(one));
  }
  return text;
}

// False where it is none, or does not fit ours.
bool VerbsLane::accept(const std::string& text) {
  Greeting greeting;
  if (text.size() < sizeof(greeting)) return false;
  std::memcpy(&greeting, text.data(), sizeof(greeting));
  if (greeting.magic != kIntroductionMagic || greeting.pairs != pairs_.size() || greeting.slots != options_.slots ||
      greeting.slot_bytes != options_.slot_bytes ||
      text.size() != sizeof(greeting) + pairs_.size() * sizeof(GreetingPair)) {
    return false;
  }
  remote_slots_ = greeting.address;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    GreetingPair one;
    std::memcpy(&one, text.data() + sizeof(greeting) + i * sizeof(one), sizeof(one));
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

// A write that arrives at a queue pair which does not receive yet is lost until its time runs out. So each side says
// when its own do, and sends when it has heard that of the other.
void VerbsLane::connect() {
  if (!broken_.empty()) return;
  if (stage_ == Stage::kIntroduced) {
    const auto text = introductions_.take(options_.peer, options_.lane);
    if (!text && introductions_.corrupt(options_.peer)) fail(introductions_.trouble());
    if (!text) return;
    if (!accept(*text)) {
      fail(
          fmt::format("rank {} introduced its queue pairs otherwise than this rank: have all ranks the same "
                      "TUTTI_RDMA_QUEUE_PAIRS and version?",
                      options_.peer));
    }
    if (!broken_.empty()) return;
    const Status told = introductions_.introduce(options_.peer, options_.lane | kReadyLane, "");
    if (!told.ok()) return fail(told.error().message);
    stage_ = Stage::kAnswered;
  }
  if (stage_ == Stage::kAnswered && introductions_.take(options_.peer, options_.lane | kReadyLane)) {
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
  poll();  // a completion says more
  for (std::size_t i = 0; i < pairs_.size() && broken_.empty(); ++i) {
    ibv_qp_attr state{};
    ibv_qp_init_attr made{};
    const int error = pairs_[i].rail.rail->library().query_qp(pairs_[i].pair, &state, IBV_QP_STATE, &made);
    const bool broken = state.qp_state == IBV_QPS_ERR || state.qp_state == IBV_QPS_SQE;
    if (error == 0 && broken) on_failure(i, "the device has taken it out of service (its state is error)");
  }
}

// The peer may have nothing to learn it from: its own queue pair may work, and it may only receive.
void VerbsLane::tell_broken(std::size_t index, const std::string& words) {
  const auto number = static_cast<std::uint32_t>(index);
  std::string text(reinterpret_cast<const char*>(&number), sizeof(number));
  text += words.substr(0, kMostBrokenWords);
  static_cast<void>(
      introductions_.introduce(options_.peer, options_.lane | kBrokenLane, text));  // it has failed anyway
}

void VerbsLane::hear() {
  if (stage_ == Stage::kClosed || told_broken_ || !connected()) return;
  const auto text = introductions_.take(options_.peer, options_.lane | kBrokenLane);
  std::uint32_t number = 0;
  if (!text || text->size() < sizeof(number)) return;
  std::memcpy(&number, text->data(), sizeof(number));
  told_broken_ = true;
  std::string words = text->substr(sizeof(number), kMostBrokenWords);
  for (char& c : words) c = c >= ' ' && c <= '~' ? c : '?';  // a peer's
  const Pair& pair = pairs_[std::min<std::size_t>(number, pairs_.size() - 1)];
  fail(fmt::format("{}: rank {} says: {}", way_of(pair), options_.peer, words));
}

}  // namespace tutti
