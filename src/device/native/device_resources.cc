// DeviceResources: the shared objects of a process, and the orderly end of a rank's GPU resources.
#include "device/native/device_resources.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/leak_until_exit.h"

namespace tutti::detail {
namespace {

constexpr std::chrono::milliseconds kClosing{1000};
constexpr std::chrono::milliseconds kDraining{1000};
constexpr std::chrono::milliseconds kPoll{1};

}  // namespace

void DeviceResources::Process::give(std::uint32_t rank, Share share) {
  const std::scoped_lock lock(mutex_);
  shares_[rank] = std::move(share);
}

DeviceResources::Process::Share DeviceResources::Process::of_rank(std::uint32_t rank) {
  const std::scoped_lock lock(mutex_);
  const auto found = shares_.find(rank);
  return found == shares_.end() ? Share{} : found->second;
}

std::shared_ptr<LaunchGroup> DeviceResources::Process::launch_group(const std::shared_ptr<RankDevice>& device,
                                                                    const std::vector<std::uint32_t>& ranks,
                                                                    bool whole) {
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<LaunchGroup>& launch_group = launch_groups_[ranks.front()];
  if (launch_group == nullptr) launch_group = std::make_shared<LaunchGroup>(device, ranks, whole);
  return launch_group;
}

device::Link* DeviceResources::links_at(std::size_t table) const {
  const std::uint64_t at = links_->address() + links_at_[table];
  return reinterpret_cast<device::Link*>(at);  // NOLINT: a device's address
}

device::ChannelState* DeviceResources::states() const {
  const std::uint64_t at = own_arena_->address() + DeviceArena::states();
  return reinterpret_cast<device::ChannelState*>(at);  // NOLINT: a device's address
}

device::RankStatus* DeviceResources::status_on_device() const {
  return reinterpret_cast<device::RankStatus*>(pinned_->device_address());  // NOLINT: a device's address
}

bool DeviceResources::end() {
  if (std::exchange(ended_, true) || launch_group_ == nullptr) return idle_;
  launch_group_->leave(rank_);
  idle_ = launch_group_->drain(rank_, kDraining);
  if (!idle_) {
    std::atomic_ref<std::uint64_t>(status_->abort).store(1, std::memory_order_release);
    launch_group_->fail(error_with([&] { return fmt::format("rank {} ended its communicator", rank_); },
                                   ErrorCode::kAborted, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank_)));
    idle_ = launch_group_->drain(rank_, kDraining);
  }
  launch_group_->forget(rank_, idle_);
  return idle_;
}

DeviceResources::~DeviceResources() {
  const bool idle = end();
  const auto scope = cuda::ContextScope::try_enter(device_->driver(), device_->context());
  // Closes the peers' registered memory if no call runs any more (`idle`); otherwise its mappings are leaked. This must
  // be done before close_peers(), below, notifies the peers that this rank does not use their memory any more.
  if (windows_ != nullptr) windows_->end(idle);
  bool closed = false;
  runs_through([&] {  // if an allocation fails, this rank does not wait for its peers; close_peers() allocates nothing
    if (idle) close_peers();
    closed = idle && scope && peers_have_closed(kClosing);
  });
  if (closed) return;
  log_.write(LogLevel::kWarn, "a communicator ends {}: its memory on device {} is never freed",
             idle ? "before its peers" : "while calls of it still run", device_->number());
  leak_until_exit(std::move(own_arena_));  // peers may still write to this rank's arena
  if (idle) return;
  leak_until_exit(std::move(opened_));  // kernels may still use this and the following objects
  leak_until_exit(std::move(flags_));
  leak_until_exit(std::move(links_));
  leak_until_exit(std::move(link_check_));
  leak_until_exit(std::move(block_budget_));
  // keeps the arenas of peers in this process, and the LaunchGroup's host memory that launches read
  leak_until_exit(std::move(process_));
  leak_until_exit(std::move(pinned_));
}

// Writes the tables of connections to the device. `peers`: the arenas of all ranks.
Status DeviceResources::write_links(const std::vector<DeviceArena::ArenaPeer>& peers) {
  const cuda::Driver& driver = device_->driver();
  std::vector<device::Link> all;
  for (std::size_t table = 0; table < links_at_.size(); ++table) {
    links_at_[table] = all.size() * sizeof(device::Link);
    const auto links = table == kDeviceProtocols ? arena_.transfer_links(rank_, peers)
                                                 : arena_.links(static_cast<device::Protocol>(table), rank_, peers);
    all.insert(all.end(), links.begin(), links.end());
  }
  auto memory = cuda::DeviceMemory::allocate(driver, all.size() * sizeof(device::Link));
  if (!memory) return memory.error();
  auto stream = cuda::Stream::create(driver);
  if (!stream) return stream.error();
  TUTTI_TRY(
      driver.check(driver.api().memcpy_htod_async(memory->address(), all.data(), memory->bytes(), stream->handle()),
                   "writing a rank's connections"));
  TUTTI_TRY(stream->synchronize());
  links_.emplace(std::move(*memory));
  return {};
}

// Closes the memory of the peers in other processes, and tells these that this rank does not use it any more.
void DeviceResources::close_peers() {
  for (Opened& one : std::exchange(opened_, {})) {
    const std::shared_ptr<PeerFlags>& flags = flags_[one.rank];
    { const cuda::PeerMemory closed = std::move(one.memory); }
    if (flags != nullptr) flags->flag(PeerFlags::Kind::kClosed, rank_).store(1);
  }
}

// Waits until every peer in another process has stopped using this rank's memory or has exited. Returns false if
// that takes longer than `limit`.
bool DeviceResources::peers_have_closed(std::chrono::milliseconds limit) {
  if (remote_ranks_.empty()) return true;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    exchange_->pump();
    const auto has_closed = [&](const RemoteRank& peer) {
      return flags_[rank_]->flag(PeerFlags::Kind::kClosed, peer.rank).load() != 0 ||
             exchange_->peer_gone(peer.job_rank);
    };
    if (std::all_of(remote_ranks_.begin(), remote_ranks_.end(), has_closed)) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace tutti::detail
