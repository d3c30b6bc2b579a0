#include "transports/verbs/lane.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::size_t kHeaderPlace = 64;              // bytes in front of a slot's payload
constexpr std::uint64_t kPinnedFrom = 8192;           // bytes; shorter ones are copied into a slot, which costs less
constexpr std::uint64_t kRegisteredBlock = 16 << 20;  // bytes
constexpr std::uint64_t kStripeBytes = 65536;         // of a message for each further queue pair
constexpr std::uint16_t kReadyLane = 0x8000;          // beside a lane's number: "my queue pairs receive now"
constexpr std::uint32_t kReleasedMask = 0xffffff;
constexpr std::uint32_t kIsReleased = 1u << 30;  // in immediate data: else a part of a message
constexpr std::uint32_t kPartsShift = 16;        // of a message: parts - 1, above the slot
constexpr std::uint32_t kMostParts = 1u << 12;
constexpr std::uint32_t kIntroductionMagic = 0x31425654;  // "TVB1"

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

// Requests that a queue pair holds: a part of each message, what tells of releases, and some that ask for completion.
std::uint32_t depth_of(std::uint32_t slots) { return 4 * slots + 16; }

// Of memory that is too long to be registered whole: the blocks of kRegisteredBlock that [data, data + bytes) lies in.
std::span<const std::byte> block_of(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes) {
  const auto offset = static_cast<std::uint64_t>(data - whole.data());
  const std::uint64_t begin = offset / kRegisteredBlock * kRegisteredBlock;
  const std::uint64_t end = (offset + bytes + kRegisteredBlock - 1) / kRegisteredBlock * kRegisteredBlock;
  return whole.subspan(begin, std::min<std::uint64_t>(end, whole.size()) - begin);
}

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
  const std::uint64_t half = options_.slots * stride();
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
      auto pair = rail.rail->create_pair(*this, pairs_.size() - 1, depth_of(options_.slots));
      if (!pair) return pair.error();
      pairs_.back().pair = pair->pair;
      pairs_.back().most_inline = pair->most_inline;
      std::uint32_t number = 0;
      static_cast<void>(getrandom(&number, sizeof(number), 0));  // any will do
      pairs_.back().packet_number = number & 0xffffff;
    }
  }
  return {};
}

VerbsLane::~VerbsLane() {
  close();
  if (memory_ != nullptr) munmap(memory_, 2 * options_.slots * stride());
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

std::uint64_t VerbsLane::stride() const {
  constexpr std::uint64_t kPage = 4096;
  return (kHeaderPlace + options_.slot_bytes + kPage - 1) / kPage * kPage;
}

std::byte* VerbsLane::send_slot(std::uint64_t number) const { return memory_ + (number % options_.slots) * stride(); }

const std::byte* VerbsLane::receive_slot(std::uint64_t number) const {
  return memory_ + (options_.slots + number % options_.slots) * stride();
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

void VerbsLane::fail(const std::string& why) {
  if (broken_.empty()) broken_ = why;
}

bool VerbsLane::poll() {
  bool any = false;
  const VerbsRail* last = nullptr;
  for (const Pair& pair : pairs_) {
    if (stage_ == Stage::kClosed) break;
    if (pair.rail.rail != last) any |= pair.rail.rail->poll();
    last = pair.rail.rail;
  }
  return any;
}

void VerbsLane::pump() {
  if (stage_ == Stage::kIntroduced || stage_ == Stage::kAnswered) connect();
  poll();
  if (owes()) tell_released();
}

bool VerbsLane::room() const {
  const std::uint64_t needed = 2 + static_cast<std::uint64_t>(parts_of(options_.slot_bytes) / pairs_.size());
  return std::all_of(pairs_.begin(), pairs_.end(),
                     [&](const Pair& pair) { return pair.posted - pair.done + needed <= depth_of(options_.slots); });
}

bool VerbsLane::ready() {
  const auto may_send = [this] {
    return stage_ == Stage::kConnected && sent_ - peer_released_ < options_.slots && room() && broken_.empty();
  };
  if (may_send()) return true;
  pump();
  return may_send();
}

std::byte* VerbsLane::slot() { return send_slot(sent_) + kHeaderPlace; }

std::size_t VerbsLane::parts_of(std::uint64_t bytes) const {
  const std::uint64_t whole = kHeaderPlace + bytes;
  std::uint64_t longest = 0;
  for (const Pair& pair : pairs_) {
    const std::uint64_t most = pair.rail.rail->longest_message();
    if (most > 2 * kHeaderPlace && (longest == 0 || most < longest)) longest = most - 2 * kHeaderPlace;
  }
  const std::uint64_t needed = longest > 0 ? (whole + longest - 1) / longest : 1;
  const std::uint64_t striped = std::clamp<std::uint64_t>(bytes / kStripeBytes, 1, pairs_.size());
  return static_cast<std::size_t>(std::max(needed, striped));
}

void VerbsLane::send(std::uint64_t bytes, const CallTag& tag) { send_message(slot(), bytes, tag, nullptr); }

void VerbsLane::send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                            const CallTag& tag) {
  const std::optional<Held> held = bytes < kPinnedFrom ? std::nullopt : hold(whole, data, bytes);
  if (held) return send_message(data, bytes, tag, &*held);
  if (bytes > 0) std::memcpy(slot(), data, bytes);
  send(bytes, tag);
}

// Registers memory with every rail's device: all of it, so that its next pieces are found, unless that is much. Nothing
// where one refuses.
std::optional<VerbsLane::Held> VerbsLane::hold(std::span<const std::byte> whole, const std::byte* data,
                                               std::uint64_t bytes) {
  Held held;
  for (const Pair& pair : pairs_) {
    if (!held.empty() && pair.rail.rail == pairs_[held.size() - 1].rail.rail) {
      held.push_back(held.back());
      continue;
    }
    Registrations& cache = *pair.rail.rail->device().registrations();
    auto entry = cache.acquire(whole.size() <= cache.most_bytes() / 4 ? whole : block_of(whole, data, bytes));
    if (entry == nullptr) return std::nullopt;
    held.push_back(std::move(entry));
  }
  return held;
}

void VerbsLane::send_message(const std::byte* data, std::uint64_t bytes, const CallTag& tag, const Held* held) {
  TUTTI_ASSERT(bytes <= options_.slot_bytes && stage_ == Stage::kConnected);
  const std::uint64_t number = sent_++;
  std::byte* const start = send_slot(number);
  const Header header{.tag = tag,
                      .bytes = bytes,
                      .number = static_cast<std::uint32_t>(number),
                      .released = static_cast<std::uint32_t>(released_)};
  std::memcpy(start, &header, sizeof(header));
  told_ = released_;
  const std::size_t parts = parts_of(bytes);
  TUTTI_ASSERT(parts <= kMostParts);
  const std::uint64_t share = ((bytes + parts - 1) / parts + 63) / 64 * 64;
  const auto slot = static_cast<std::uint32_t>(number % options_.slots);
  const std::uint32_t immediate = static_cast<std::uint32_t>(parts - 1) << kPartsShift | slot;
  const std::size_t first = parts > 1 ? 0 : next_pair_;
  if (parts == 1) next_pair_ = (next_pair_ + 1) % pairs_.size();
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t index = (first + i) % pairs_.size();
    const std::uint64_t begin = std::min(i * share, bytes);
    const std::uint64_t length = std::min(share, bytes - begin);
    const Pair& pair = pairs_[index];
    std::array<Piece, 2> pieces;
    std::size_t count = 0;
    if (i == 0) pieces[count++] = {.data = start, .bytes = kHeaderPlace, .key = pair.source->lkey};
    if (held == nullptr && i == 0) {
      pieces[0].bytes += length;  // the payload lies behind it
    } else if (length > 0) {
      const std::uint32_t key = held != nullptr ? (*held)[index]->key().local : pair.source->lkey;
      pieces[count++] = {.data = data + begin, .bytes = length, .key = key};
    }
    const std::uint64_t offset = slot * stride() + (i == 0 ? 0 : kHeaderPlace + begin);
    post(index, std::span(pieces).first(count), offset, immediate, held != nullptr);
    if (held == nullptr) continue;
    pairs_[index].pinned = pairs_[index].posted;
    pairs_[index].uses.emplace_back(pairs_[index].posted, (*held)[index]);
  }
}

// A write with immediate data. `tells`: its completion is wanted; of the others a few tell, so that room comes back.
void VerbsLane::post(std::size_t index, std::span<const Piece> pieces, std::uint64_t offset, std::uint32_t immediate,
                     bool tells) {
  Pair& pair = pairs_[index];
  std::array<ibv_sge, 2> parts{};
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    parts[i] = {.addr = reinterpret_cast<std::uintptr_t>(pieces[i].data),
                .length = static_cast<std::uint32_t>(pieces[i].bytes),
                .lkey = pieces[i].key};
    bytes += pieces[i].bytes;
  }
  ibv_send_wr request{};
  request.wr_id = ++pair.posted;
  request.sg_list = parts.data();
  request.num_sge = static_cast<int>(pieces.size());
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htobe32(immediate);
  request.wr.rdma.remote_addr = remote_slots_ + offset;
  request.wr.rdma.rkey = pair.remote_key;
  if (bytes > 0 && bytes <= pair.most_inline) request.send_flags |= IBV_SEND_INLINE;
  if (tells || pair.posted - pair.asked >= depth_of(options_.slots) / 4) {
    request.send_flags |= IBV_SEND_SIGNALED;
    pair.asked = pair.posted;
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair.pair, &request, &bad); error != 0) {
    on_failure(index, fmt::format("a request is refused: {}", std::strerror(error)));
  }
}

// Never of a way that is broken: who waits for it learns that the peer cannot be reached.
bool VerbsLane::pins_done() const {
  return stage_ == Stage::kClosed ||
         (broken_.empty() &&
          std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.pinned <= pair.done; }));
}

bool VerbsLane::idle() const {
  return !broken_.empty() || stage_ == Stage::kClosed ||
         std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.posted == pair.done; });
}

// An empty write without immediate data, which the peer does not see: when it is done, all before it is.
void VerbsLane::ask_for_completion() {
  if (stage_ != Stage::kConnected || !broken_.empty()) return;
  for (Pair& pair : pairs_) {
    if (pair.asked == pair.posted) continue;
    ibv_send_wr request{};
    request.wr_id = ++pair.posted;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = remote_slots_;
    request.wr.rdma.rkey = pair.remote_key;
    pair.asked = pair.posted;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(pair.pair, &request, &bad) != 0) fail("a request is refused");
  }
}

void VerbsLane::on_done(std::size_t index, std::uint64_t number) {
  Pair& pair = pairs_[index];
  pair.done = number;
  while (!pair.uses.empty() && pair.uses.front().first <= number) pair.uses.pop_front();
}

void VerbsLane::on_failure(std::size_t index, const std::string& words) {
  const Pair& pair = pairs_[index];
  VerbsRail& rail = *pair.rail.rail;
  rail.device().pump();
  const std::string trouble = rail.device().trouble(rail.port().number);
  fail(fmt::format("{}: {}{}", way_of(pair), words, trouble.empty() ? "" : "; " + trouble));
}

std::string VerbsLane::way_of(const Pair& pair) const {
  const VerbsPort& port = pair.rail.rail->port();
  return fmt::format("{} port {}, queue pair {} (to queue pair {} of {} port {} at rank {})", port.device, port.number,
                     pair.pair != nullptr ? pair.pair->qp_num : 0, pair.remote_number, pair.rail.remote.device,
                     pair.rail.remote.number, options_.peer);
}

std::string VerbsLane::way() const {
  std::string text;
  for (const Pair& pair : pairs_) text += (text.empty() ? "" : ", ") + way_of(pair);
  return text;
}

void VerbsLane::on_arrival(std::size_t, std::uint32_t immediate) {
  if ((immediate & kIsReleased) != 0) {
    // Of numbers that come out of order, by several queue pairs, the later one counts.
    const std::uint32_t more = (immediate - static_cast<std::uint32_t>(peer_released_)) & kReleasedMask;
    return more <= options_.slots ? note_released(more) : void();
  }
  const std::uint32_t slot = immediate & ((1u << kPartsShift) - 1);
  const std::uint32_t parts = (immediate >> kPartsShift & (kMostParts - 1)) + 1;
  if (slot >= options_.slots || whole_[slot]) {
    corrupt_ = true;
    return;
  }
  if (++parts_[slot] < parts) return;
  parts_[slot] = 0;
  whole_[slot] = true;
  ++arrived_;
  Header header;
  std::memcpy(&header, receive_slot(slot), sizeof(header));
  const std::uint32_t more = header.released - static_cast<std::uint32_t>(peer_released_);
  if (more <= options_.slots) note_released(more);
  if (owes()) tell_released();  // whoever polled: the peer may wait for this alone
}

void VerbsLane::note_released(std::uint64_t more) {
  if (peer_released_ + more <= sent_) {
    peer_released_ += more;
  } else {
    corrupt_ = true;
  }
}

const VerbsLane::Header* VerbsLane::front() {
  if (front_) return &*front_;
  const std::size_t slot = released_ % options_.slots;
  if (!whole_[slot]) {
    pump();
    if (!whole_[slot]) return nullptr;
  }
  Header header;
  std::memcpy(&header, receive_slot(released_), sizeof(header));
  corrupt_ |= header.number != static_cast<std::uint32_t>(released_) || header.bytes > options_.slot_bytes ||
              header.tag.sequence == 0;
  if (corrupt_) return nullptr;
  return &front_.emplace(header);
}

const std::byte* VerbsLane::payload() const { return receive_slot(released_) + kHeaderPlace; }

void VerbsLane::release() {
  front_.reset();
  whole_[released_ % options_.slots] = false;
  ++released_;
  if (owes()) tell_released();
}

// A message of ours that goes out soon would tell it at no cost, so a few may wait for one; but not where the peer has
// no credit left as far as we know, for it may need one to come to that message.
bool VerbsLane::owes() const {
  if (told_ == released_) return false;
  return released_ - told_ >= std::max<std::uint64_t>(1, options_.slots / 2) || arrived_ - told_ >= options_.slots;
}

void VerbsLane::tell_released() {
  if (stage_ != Stage::kConnected || !broken_.empty() || !room()) return;
  told_ = released_;
  post(0, {}, 0, kIsReleased | (static_cast<std::uint32_t>(released_) & kReleasedMask), false);
}

}  // namespace tutti
