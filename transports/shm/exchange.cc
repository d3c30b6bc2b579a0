#include "transports/shm/exchange.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/assert.h"

namespace tutti {
namespace {

// Interval at which collect_offers() checks for mappings during set-up.
constexpr std::chrono::microseconds kPollInterval{200};

std::uint64_t wake_key(std::uint32_t rank, std::uint32_t segment) { return std::uint64_t{rank} << 32 | segment; }

class InProcessWakeReceiver final : public WakeReceiver {
 public:
  InProcessWakeReceiver(std::shared_ptr<InProcessRelay> relay, std::uint64_t key, int event)
      : relay_(std::move(relay)), key_(key), event_(event) {}
  ~InProcessWakeReceiver() override { relay_->wake_table().close(key_); }
  std::vector<int> descriptors() const override { return {event_}; }
  void drain() override { clear_event(event_); }

 private:
  std::shared_ptr<InProcessRelay> relay_;  // shared with the exchanges
  std::uint64_t key_;
  int event_;
};

}  // namespace

Error set_up_has_failed(std::int32_t missing) {
  return {ErrorCode::kAborted, ErrorScope::kCommunicator, missing, "the set-up has failed"};
}

Result<std::vector<Offer>> collect_offers(SegmentExchange& exchange, std::uint32_t rank,
                                          const std::vector<std::uint32_t>& ids, const std::shared_ptr<Mapping>& own,
                                          Clock& clock, std::int64_t deadline_ns,
                                          const std::function<bool()>& has_failed) {
  TUTTI_ASSERT(rank < ids.size());
  std::vector<Offer> offers;
  for (std::uint32_t peer = 0; peer < ids.size(); ++peer) {
    offers.push_back({.id = ids[peer], .mapping = peer == rank ? own : nullptr});
  }
  while (true) {
    const bool all_sent = exchange.pump();
    std::int32_t missing = -1;
    for (std::uint32_t peer = 0; peer < ids.size(); ++peer) {
      std::shared_ptr<Mapping>& mapping = offers[peer].mapping;
      if (mapping != nullptr) continue;
      // Read before find(): if the peer exits between the two calls, find() still finds the mapping that the peer
      // sent before.
      const bool gone = exchange.peer_gone(peer);
      mapping = exchange.find(peer, ids[peer]);
      if (mapping != nullptr) continue;
      // The loss is final. The peer is not asked to share the mapping again, because a peer that has all that it
      // needs no longer calls pump().
      if (const auto loss = exchange.loss(peer, ids[peer])) {
        return error_of(*loss, ErrorScope::kCommunicator, peer, rank);
      }
      if (gone) {
        return Error{ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(peer),
                     fmt::format("rank {} ended during set-up", peer)};
      }
      if (missing < 0) missing = static_cast<std::int32_t>(peer);
    }
    if (missing < 0 && all_sent) return offers;
    if (has_failed && has_failed()) return set_up_has_failed(missing);
    if (clock.now_ns() >= deadline_ns) {
      return Error{ErrorCode::kTimeout, ErrorScope::kCommunicator, missing,
                   missing >= 0 ? fmt::format("set-up deadline passed: no shared memory from rank {}", missing)
                                : "set-up deadline passed: a peer does not receive the shared memory of this rank"};
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

SubExchange::SubExchange(std::shared_ptr<SegmentExchange> parent, std::vector<std::uint32_t> members)
    : parent_(std::move(parent)), members_(std::move(members)) {
  // translate() replaces an empty audience by the members. If there were none, the parent would get an empty audience,
  // which means all of its peers.
  TUTTI_ASSERT(!members_.empty());
}

std::span<const std::uint32_t> SubExchange::translate(std::span<const std::uint32_t> audience,
                                                      std::vector<std::uint32_t>& storage) const {
  if (audience.empty()) return members_;
  for (const std::uint32_t peer : audience) storage.push_back(members_.at(peer));
  return storage;
}

std::uint32_t SubExchange::share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) {
  std::vector<std::uint32_t> storage;
  return parent_->share(mapping, translate(audience, storage));
}

void SubExchange::unshare(std::uint32_t id, std::span<const std::uint32_t> audience) {
  std::vector<std::uint32_t> storage;
  parent_->unshare(id, translate(audience, storage));
}

bool SubExchange::all_sent_to(std::span<const std::uint32_t> peers) {
  std::vector<std::uint32_t> storage;
  return parent_->all_sent_to(translate(peers, storage));
}

std::shared_ptr<Mapping> SubExchange::find(std::uint32_t peer, std::uint32_t id) {
  return parent_->find(members_.at(peer), id);
}

std::optional<MemoryLoss> SubExchange::loss(std::uint32_t peer, std::uint32_t id) {
  return parent_->loss(members_.at(peer), id);
}

std::optional<MemoryLoss> SubExchange::take_loss(std::uint32_t peer, std::uint32_t id) {
  return parent_->take_loss(members_.at(peer), id);
}

bool SubExchange::peer_gone(std::uint32_t peer) { return parent_->peer_gone(members_.at(peer)); }
pid_t SubExchange::process_of(std::uint32_t peer) { return parent_->process_of(members_.at(peer)); }
void SubExchange::wake_peer(std::uint32_t peer, std::uint32_t segment) {
  parent_->wake_peer(members_.at(peer), segment);
}

Result<std::unique_ptr<WakeReceiver>> SubExchange::create_wake_receiver(std::uint32_t segment) {
  return parent_->create_wake_receiver(segment);
}

bool SubExchange::pump() {
  parent_->pump();
  return parent_->all_sent_to(members_);
}

void SubExchange::post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) {
  parent_->post(members_.at(peer), channel, datagram);
}

std::optional<std::string> SubExchange::take_datagram(std::uint32_t peer, std::uint64_t channel) {
  return parent_->take_datagram(members_.at(peer), channel);
}

void InProcessRelay::insert(std::uint32_t rank, std::uint32_t id, std::shared_ptr<Mapping> mapping) {
  const std::scoped_lock lock(mutex_);
  mappings_[{rank, id}] = std::move(mapping);
}

void InProcessRelay::erase(std::uint32_t rank, std::uint32_t id) {
  std::shared_ptr<Mapping> last;  // so that the memory is unmapped after the lock is released
  const std::scoped_lock lock(mutex_);
  const auto found = mappings_.find({rank, id});
  if (found == mappings_.end()) return;
  last = std::move(found->second);
  mappings_.erase(found);
}

std::shared_ptr<Mapping> InProcessRelay::find(std::uint32_t rank, std::uint32_t id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = mappings_.find({rank, id});
  return found == mappings_.end() ? nullptr : found->second;
}

void InProcessRelay::post(std::uint32_t from, std::uint32_t to, std::uint64_t channel, const std::string& datagram) {
  TUTTI_ASSERT(datagram.size() <= kMostDatagramBytes);
  const std::scoped_lock lock(mutex_);
  datagrams_[{from, to}].put(channel, datagram);
}

std::optional<std::string> InProcessRelay::take_datagram(std::uint32_t from, std::uint32_t to, std::uint64_t channel) {
  const std::scoped_lock lock(mutex_);
  const auto box = datagrams_.find({from, to});
  return box == datagrams_.end() ? std::nullopt : box->second.take(channel);
}

std::uint32_t InProcessExchange::share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t>) {
  std::uint32_t id = 0;
  {
    const std::scoped_lock lock(mutex_);
    id = ++last_id_;
  }
  TUTTI_ASSERT(id != 0, "all numbers of mappings are used up");
  relay_->insert(rank_, id, mapping);
  return id;
}

// All ranks of the process use one mapping of memory from Mapping::create() or Mapping::lend(). Adopted memory belongs
// to the user, who may free it while a peer still reads it. Each peer therefore gets its own view of adopted memory.
std::shared_ptr<Mapping> InProcessExchange::find(std::uint32_t peer, std::uint32_t id) {
  auto mapping = relay_->find(peer, id);
  const std::scoped_lock lock(mutex_);
  if (mapping == nullptr || !mapping->adopted()) {
    adopted_.erase({peer, id});
    lost_.erase({peer, id});
    return mapping;
  }
  if (const auto known = adopted_.find({peer, id}); known != adopted_.end()) return known->second;
  auto view = Mapping::map_again(*mapping);
  if (view) return adopted_[{peer, id}] = std::move(*view);
  lost_[{peer, id}] = lost_mapping(view.error());
  return nullptr;
}

std::optional<MemoryLoss> InProcessExchange::loss(std::uint32_t peer, std::uint32_t id) {
  const std::scoped_lock lock(mutex_);
  const auto lost = lost_.find({peer, id});
  return lost == lost_.end() ? std::nullopt : std::optional(lost->second);
}

// Returns the loss at once, because no peer need be asked: the next find() tries to map the memory again.
std::optional<MemoryLoss> InProcessExchange::take_loss(std::uint32_t peer, std::uint32_t id) {
  const std::scoped_lock lock(mutex_);
  const auto lost = lost_.extract({peer, id});
  return lost.empty() ? std::nullopt : std::optional(std::move(lost.mapped()));
}

// Drops views of memory that its owner has withdrawn. Otherwise they would stay mapped, because no caller asks for
// their numbers again.
bool InProcessExchange::pump() {
  const std::scoped_lock lock(mutex_);
  const auto taken_back = [this](const auto& entry) {
    return relay_->find(entry.first.first, entry.first.second) == nullptr;
  };
  std::erase_if(adopted_, taken_back);
  std::erase_if(lost_, taken_back);
  return true;
}

void InProcessExchange::wake_peer(std::uint32_t peer, std::uint32_t segment) {
  relay_->wake_table().signal(wake_key(peer, segment));
}

Result<std::unique_ptr<WakeReceiver>> InProcessExchange::create_wake_receiver(std::uint32_t segment) {
  const std::uint64_t key = wake_key(rank_, segment);
  auto event = relay_->wake_table().open(key);
  if (!event) return event.error();
  return std::unique_ptr<WakeReceiver>(std::make_unique<InProcessWakeReceiver>(relay_, key, *event));
}

}  // namespace tutti
