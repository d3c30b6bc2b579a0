#include "transports/verbs/path.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "transports/verbs/connections.h"
#include "transports/verbs/offer.h"

namespace tutti {
namespace {

// Minimum time between two queries by probe_next(). Each query covers the queue pairs of one lane. It is estimated to
// take about 10 microseconds for a queue pair.
constexpr std::int64_t kProbeEveryNs = 10'000'000;

// About how long the device retransmits a packet before it reports the queue pair as broken.
std::int64_t tries_last_ns(const VerbsSettings& settings) {
  constexpr std::int64_t kUnitNs = 4096;
  return (kUnitNs << settings.timeout) * (settings.retries + 1);
}

// Makes the VerbsPaths of one rank, or of all ranks of one create_all(). It has the list of their ports, and keeps the
// devices of these ports open.
class VerbsMaker final : public DataPathMaker {
 public:
  VerbsMaker(VerbsSettings settings, std::vector<VerbsPort> ports, std::vector<std::shared_ptr<VerbsDevice>> devices)
      : settings_(std::move(settings)), ports_(std::move(ports)), devices_(std::move(devices)) {}
  std::string_view name() const override { return "verbs"; }
  std::string offer() const override { return print_offer(ports_); }
  Result<std::unique_ptr<DataPath>> make(const DataPathHost& host, const DataPathOptions& options) override {
    auto path = VerbsPath::create(host, options, devices_, ports_, settings_);
    if (!path) return path.error();
    return std::unique_ptr<DataPath>(std::move(*path));
  }

 private:
  const VerbsSettings settings_;
  const std::vector<VerbsPort> ports_;
  const std::vector<std::shared_ptr<VerbsDevice>> devices_;  // one for each port; shared by the process
};

std::string names_of(const std::vector<VerbsPort>& ports) {
  std::string text;
  for (const VerbsPort& port : ports) {
    text += fmt::format("{}{} port {} (rail {}, {})", text.empty() ? "" : ", ", port.device, port.number, port.rail,
                        port.ethernet ? "RoCE" : "InfiniBand");
  }
  return text.empty() ? "none" : text;
}

}  // namespace

Result<std::shared_ptr<DataPathMaker>> make_verbs_maker(const VerbsSettings& settings) {
  auto found = find_verbs_ports(settings);
  if (!found) return found.error();
  if (found->usable.empty()) {
    return Error{ErrorCode::kConfig, ErrorScope::kCommunicator, -1, "no port of an RDMA device can be used"};
  }
  std::vector<std::shared_ptr<VerbsDevice>> devices;
  for (const VerbsPort& port : found->usable) {
    auto device = VerbsDevice::open(port.device, settings.cache_bytes);
    if (!device) return device.error();
    devices.push_back(std::move(*device));
  }
  return std::shared_ptr<DataPathMaker>(
      std::make_shared<VerbsMaker>(settings, std::move(found->usable), std::move(devices)));
}

Result<std::unique_ptr<VerbsPath>> VerbsPath::create(const DataPathHost& host, const DataPathOptions& options,
                                                     const std::vector<std::shared_ptr<VerbsDevice>>& devices,
                                                     const std::vector<VerbsPort>& ports,
                                                     const VerbsSettings& settings) {
  TUTTI_ASSERT(devices.size() == ports.size() && options.offers.size() == options.ranks);
  std::unique_ptr<VerbsPath> path(new VerbsPath(host, options, settings));  // private constructor
  path->rails_.resize(ports.size());
  path->peers_.resize(options.ranks);
  for (std::uint32_t peer = 0; peer < options.ranks; ++peer) {
    auto theirs = parse_offer(options.offers[peer]);
    if (!theirs) {
      Error error = theirs.error();
      error.rank = static_cast<std::int32_t>(peer);
      return error;
    }
    for (const auto& [ours, other] : match_rails(ports, *theirs)) {
      std::shared_ptr<VerbsRail>& rail = path->rails_[ours];
      if (rail == nullptr) {
        VerbsSettings own = settings;
        own.rank = static_cast<std::int32_t>(options.rank);
        auto made = VerbsRail::create(devices[ours], ports[ours], own);
        if (!made) return made.error();
        rail = std::move(*made);
        TUTTI_TRY(host.links.doorbell().add_wait_source(rail->wait_fd()));
        host.links.doorbell().add_armed([weak = std::weak_ptr<VerbsRail>(rail)] {
          if (const auto armed = weak.lock()) armed->arm();
        });
      }
      path->peers_[peer].push_back({.rail = rail.get(), .remote = (*theirs)[other]});
    }
    if (settings.required && !theirs->empty() && path->peers_[peer].empty()) {
      return Error{
          ErrorCode::kConfig, ErrorScope::kCommunicator, static_cast<std::int32_t>(peer),
          fmt::format("no RDMA port of this rank ({}) reaches one of rank {} ({}): bring up ports of the same rail "
                      "with addresses of the same type, or set TUTTI_RDMA_DEVICES so that the i-th port of each "
                      "rank is in the same network, or set TUTTI_TRANSPORT=tcp",
                      names_of(ports), peer, names_of(*theirs))};
    }
  }
  return path;
}

VerbsPath::~VerbsPath() {
  // In a forked child this object is only a copy. All resources belong to the parent, so they are leaked intentionally.
  if (getpid() != process_) {
    static_cast<void>(new (std::nothrow) auto(std::move(lanes_)));
    static_cast<void>(new (std::nothrow) auto(std::move(rails_)));
    return;
  }
  for (auto& [key, lane] : lanes_) lane->close();
}

Result<std::shared_ptr<VerbsLane>> VerbsPath::lane(std::uint32_t peer, std::uint16_t number) {
  auto known = lanes_.find({peer, number});
  if (known == lanes_.end()) {
    auto made = VerbsLane::open({.rank = options_.rank,
                                 .peer = peer,
                                 .lane = number,
                                 .slots = options_.slots,
                                 .slot_bytes = options_.slot_bytes,
                                 .queue_pairs = settings_.queue_pairs,
                                 .advertises_outputs = settings_.write_outputs},
                                peers_[peer], host_.handshake_channel);
    if (!made) return made.error();
    known = lanes_.emplace(Key{peer, number}, std::move(*made)).first;
  }
  return known->second;
}

Result<std::unique_ptr<SendConnection>> VerbsPath::open_send(std::uint32_t peer, std::uint16_t number) {
  auto opened = lane(peer, number);
  if (!opened) return opened.error();
  return std::unique_ptr<SendConnection>(std::make_unique<VerbsSendConnection>(std::move(*opened)));
}

Result<std::unique_ptr<ReceiveConnection>> VerbsPath::open_receive(std::uint32_t peer, std::uint16_t number) {
  auto opened = lane(peer, number);
  if (!opened) return opened.error();
  return std::unique_ptr<ReceiveConnection>(
      std::make_unique<VerbsReceiveConnection>(std::move(*opened), host_.links, peer, number));
}

// Called again and again while this rank waits (see Transport::flush()). A rank that waits must process its
// completions, too, because a peer may wait for a credit or for an answer to its handshake, and a sleep ends only once
// for all completions that have arrived.
bool VerbsPath::flush() {
  for (const auto& rail : rails_) {
    if (rail != nullptr) rail->poll();
  }
  for (auto& [key, lane] : lanes_) {
    if (lane->state().is_connecting()) lane->pump();
  }
  return true;
}

void VerbsPath::pump() {
  bool reported = false;
  for (const auto& rail : rails_) {
    if (rail == nullptr) continue;
    rail->device().pump();
    reported |= rail->device().reports().any_failure();
  }
  for (auto& [key, lane] : lanes_) {
    lane->pump();
    if (reported) lane->pairs().note_reports();
    lane->receive_broken_report();
  }
  probe_next();
}

// Queries one lane after the other. This is necessary because a queue pair with a shared receive queue need not get a
// completion when it breaks, and because some devices do not report it as an event either.
void VerbsPath::probe_next() {
  const std::int64_t now_ns = SteadyClock().now_ns();
  if (lanes_.empty() || now_ns - probed_ns_ < kProbeEveryNs) return;
  probed_ns_ = now_ns;
  auto next = lanes_.upper_bound(probed_);
  if (next == lanes_.end()) next = lanes_.begin();
  probed_ = next->first;
  next->second->pairs().probe();
}

// All lanes to a peer use the same ports, so this returns the queue pairs of the first lane only.
std::string VerbsPath::describe_path(std::uint32_t peer) {
  const auto found = lanes_.lower_bound({peer, 0});
  return found != lanes_.end() && found->first.first == peer ? found->second->pairs().describe_all() : std::string();
}

std::optional<std::string> VerbsPath::broken(std::uint32_t peer) {
  for (const LaneRail& rail : peers_[peer]) {
    if (std::string why = rail.rail->failure(); !why.empty()) return why;
    if (const auto since_ns = rail.rail->device().reports().down_since_ns(rail.rail->port().number)) {
      const std::int64_t down_ns = SteadyClock().now_ns() - *since_ns;
      // After this time the device would have given up every packet that was sent meanwhile. A rank that only receives
      // has no such packet, so it cannot notice the failure in another way.
      if (down_ns > tries_last_ns(settings_) && lanes_.lower_bound({peer, 0}) != lanes_.upper_bound({peer, 0xffff})) {
        return fmt::format("{} port {} has been down for {:.1f} s, longer than packets are retransmitted: {}",
                           rail.rail->port().device, rail.rail->port().number, static_cast<double>(down_ns) / 1e9,
                           describe_path(peer));
      }
    }
    DeviceReports& reports = rail.rail->device().reports();
    if (reports.dead()) return reports.trouble(rail.rail->port().number);
  }
  for (auto found = lanes_.lower_bound({peer, 0}); found != lanes_.end() && found->first.first == peer; ++found) {
    if (!found->second->state().broken().empty()) return found->second->state().broken();
  }
  return std::nullopt;
}

// When this rank sees that a peer has left, a report that the peer sent before has normally arrived, too, but may not
// have been processed.
bool VerbsPath::peer_reported_broken(std::uint32_t peer) {
  bool told = false;
  for (auto found = lanes_.lower_bound({peer, 0}); found != lanes_.end() && found->first.first == peer; ++found) {
    found->second->receive_broken_report();
    told |= found->second->state().peer_reported_broken();
  }
  return told;
}

// Waits only for live peers, because a peer that has left, has aborted or is lost reads nothing any more.
void VerbsPath::drain(std::int64_t timeout_ns) {
  const std::int64_t deadline_ns = SteadyClock().now_ns() + timeout_ns;
  bool waits = true;
  while (waits && SteadyClock().now_ns() < deadline_ns) {
    waits = false;
    for (auto& [key, lane] : lanes_) {
      lane->pairs().ask_for_completion();
      lane->pairs().poll();
      waits |= !lane->pairs().idle() && host_.links.status(key.first).life == PeerLife::kLive;
    }
    if (waits) sched_yield();
  }
}

MemoryReleaseCallback VerbsPath::memory_release_callback() {
  std::vector<std::weak_ptr<RegistrationCache>> all;
  for (const auto& rail : rails_) {
    if (rail == nullptr) continue;
    all.push_back(rail->device().registrations(VerbsDevice::MemoryUse::kReadByUs));
    all.push_back(rail->device().registrations(VerbsDevice::MemoryUse::kWrittenByPeers));
  }
  return [all](const void* data, std::size_t bytes) {
    for (const auto& weak : all) {
      if (const auto registrations = weak.lock()) registrations->forget(data, bytes);
    }
  };
}

std::uint64_t VerbsPath::send_completions() const {
  std::uint64_t told = 0;
  for (const auto& rail : rails_) {
    if (rail != nullptr) told += rail->send_completions();
  }
  return told;
}

std::string VerbsPath::troubles() {
  std::string text;
  for (const auto& rail : rails_) {
    if (rail == nullptr) continue;
    rail->device().pump();
    const std::string trouble = rail->device().reports().trouble(rail->port().number);
    if (!trouble.empty()) text += (text.empty() ? "" : "; ") + trouble;
  }
  return text;
}

}  // namespace tutti
