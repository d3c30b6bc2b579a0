#include "device/process_ranks.h"

#include <algorithm>
#include <utility>

namespace tutti::detail {

std::shared_ptr<ProcessRanks> ProcessRanks::join(std::uint64_t communicator, std::uint32_t rank, int device) {
  // never destroyed, because ranks may end while the process exits
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<std::uint64_t, std::weak_ptr<Shared>>;
  const std::scoped_lock lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Shared>& found = all[communicator];
  std::shared_ptr<Shared> shared = found.lock();
  if (shared == nullptr) {
    shared = std::make_shared<Shared>();
    found = shared;
  }
  {
    const std::scoped_lock inner(shared->mutex);
    shared->devices[rank] = device;
  }
  // not make_shared, because the constructor is private
  return std::shared_ptr<ProcessRanks>(new ProcessRanks(std::move(shared), rank, device));
}

ProcessRanks::~ProcessRanks() {
  const std::scoped_lock lock(shared_->mutex);
  shared_->devices.erase(rank_);
}

bool ProcessRanks::share_device() const {
  if (device_ == kUnknownDevice) return false;
  const std::scoped_lock lock(shared_->mutex);
  return std::ranges::count(shared_->devices, device_, [](const auto& entry) { return entry.second; }) > 1;
}

}  // namespace tutti::detail
