#include "device/process_ranks.h"

#include <atomic>
#include <utility>

namespace tutti::detail {

std::uint64_t this_thread_number() {
  static std::atomic<std::uint64_t> threads = 0;
  thread_local const std::uint64_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

std::shared_ptr<ProcessRanks> ProcessRanks::join(std::uint64_t communicator, int device, std::uint32_t rank) {
  // never destroyed, because ranks may end while the process exits
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<std::pair<std::uint64_t, int>, std::weak_ptr<Shared>>;
  const std::scoped_lock lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Shared>& found = all[{communicator, device}];
  std::shared_ptr<Shared> shared = found.lock();
  if (shared == nullptr) {
    shared = std::make_shared<Shared>();
    found = shared;
  }
  {
    const std::scoped_lock inner(shared->mutex);
    shared->threads[rank] = 0;
  }
  // not make_shared, because the constructor is private
  return std::shared_ptr<ProcessRanks>(new ProcessRanks(std::move(shared), rank));
}

ProcessRanks::~ProcessRanks() {
  const std::scoped_lock lock(shared_->mutex);
  shared_->threads.erase(rank_);
}

void ProcessRanks::call() {
  const std::scoped_lock lock(shared_->mutex);
  shared_->threads[rank_] = this_thread_number();
}

bool ProcessRanks::has_others() const {
  const std::scoped_lock lock(shared_->mutex);
  return shared_->threads.size() > 1;
}

ProcessRanks::Others ProcessRanks::others() const {
  Others others;
  const std::scoped_lock lock(shared_->mutex);
  for (const auto& [rank, thread] : shared_->threads) {
    if (rank == rank_) continue;
    ++(thread == this_thread_number() ? others.here : others.elsewhere);
  }
  return others;
}

}  // namespace tutti::detail
