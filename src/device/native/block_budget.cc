// BlockBudget: one table with an entry for each GPU, for the whole process, guarded by a mutex.
#include "device/native/block_budget.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace tutti::detail {
namespace {

// The blocks that the communicators of this process have taken on one GPU.
struct Device {
  cuda::CUuuid uuid;
  std::uint32_t staying = 0;          // sum of the blocks of all communicators with kStay
  std::multiset<std::uint32_t> ends;  // the blocks of each communicator with kEnd, one entry for each BlockBudget

  // The blocks of the largest communicator with kEnd. At least one block, because calls in rounds take nothing from
  // the budget and need one block at a time.
  std::uint32_t largest_end() const { return ends.empty() ? 1 : std::max(1u, *ends.rbegin()); }
  std::uint32_t left_to_stay(std::uint32_t capacity) const {
    const std::uint32_t taken = staying + largest_end();
    return capacity > taken ? capacity - taken : 0;
  }
  std::uint32_t left_to_end(std::uint32_t capacity) const { return capacity > staying ? capacity - staying : 0; }
};

std::mutex mutex;

// Returns the entry of a GPU, and makes it if it does not exist yet. Hold the mutex.
Device& find(const cuda::CUuuid& uuid) {
  // Not destroyed at exit, because communicators may be destroyed during exit.
  static auto& all = *new std::vector<Device>;
  for (Device& one : all) {
    if (one.uuid == uuid) return one;
  }
  all.push_back({.uuid = uuid, .staying = 0, .ends = {}});
  return all.back();
}

}  // namespace

BlockBudget::Left BlockBudget::left(const cuda::CUuuid& device, std::uint32_t capacity) {
  const std::scoped_lock lock(mutex);
  const Device& found = find(device);
  return {.to_stay = (found.left_to_stay(capacity) + 1) / 2, .to_end = found.left_to_end(capacity)};
}

bool BlockBudget::take(const cuda::CUuuid& device, std::uint32_t capacity, Launches launches, std::uint32_t blocks) {
  TUTTI_ASSERT(blocks > 0 && blocks_ == 0);
  const std::scoped_lock lock(mutex);
  Device& found = find(device);
  const bool stays = launches == Launches::kStay;
  if (blocks > (stays ? found.left_to_stay(capacity) : found.left_to_end(capacity))) return false;
  if (stays) found.staying += blocks;
  if (!stays) found.ends.insert(blocks);
  device_ = device;
  launches_ = launches;
  blocks_ = blocks;
  return true;
}

void BlockBudget::give_back() {
  if (blocks_ == 0) return;
  const std::scoped_lock lock(mutex);
  Device& found = find(device_);
  if (launches_ == Launches::kStay) found.staying -= blocks_;
  if (launches_ == Launches::kEnd) found.ends.erase(found.ends.find(blocks_));
  blocks_ = 0;
}

BlockBudget::BlockBudget(BlockBudget&& other) noexcept
    : device_(other.device_), launches_(other.launches_), blocks_(std::exchange(other.blocks_, 0)) {}

BlockBudget& BlockBudget::operator=(BlockBudget&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  device_ = other.device_;
  launches_ = other.launches_;
  blocks_ = std::exchange(other.blocks_, 0);
  return *this;
}

BlockBudget::~BlockBudget() { give_back(); }

}  // namespace tutti::detail
