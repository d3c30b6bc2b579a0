#include "device/process_ranks.h"

#include <algorithm>
#include <utility>

#include "device/process_registry.h"

namespace tutti::detail {

std::shared_ptr<ProcessRanks> ProcessRanks::join(std::uint64_t communicator, std::uint32_t rank, int device) {
  auto shared = shared_in_process<Shared>(communicator);
  {
    const std::scoped_lock lock(shared->mutex);
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
