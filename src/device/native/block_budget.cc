// BlockBudget and BlockLoan: one table with an entry for each GPU, for the whole process, guarded by a mutex.
#include "device/native/block_budget.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace tutti::detail {
namespace {

// How long a new communicator waits for blocks that are lent. Longer waits would be in vain, because the launches that
// have borrowed them probably wait for a rank that is in this set-up.
constexpr std::chrono::milliseconds kLoanWait{1000};
// This many blocks are never lent, so that new communicators usually need not wait.
constexpr std::uint32_t kNeverLent = 2 * kKeptBlocks;

// The blocks that the communicators of this process have taken on one GPU.
struct Device {
  cuda::CUuuid uuid;
  std::uint32_t staying = 0;          // sum of the blocks of all communicators with kStay
  std::uint32_t lent = 0;             // sum of all loans
  std::multiset<std::uint32_t> ends;  // the blocks of each communicator with kEnd, one entry for each BlockBudget

  // The blocks of the largest communicator with kEnd. At least one block, because calls in rounds take nothing from
  // the budget and need one block at a time.
  std::uint32_t largest_end() const { return ends.empty() ? 1 : std::max(1u, *ends.rbegin()); }
  std::uint32_t left_to_stay(std::uint32_t capacity) const {
    const std::uint32_t taken = staying + lent + largest_end();
    return capacity > taken ? capacity - taken : 0;
  }
  std::uint32_t left_to_lend(std::uint32_t capacity) const {
    const std::uint32_t left = left_to_stay(capacity);
    return left > kNeverLent ? left - kNeverLent : 0;
  }
  std::uint32_t left_to_end(std::uint32_t capacity) const { return capacity > staying ? capacity - staying : 0; }
};

std::mutex mutex;
std::condition_variable returned;  // notified when lent blocks are returned

// Returns the entry of a GPU, and makes it if it does not exist yet. Hold the mutex.
Device& find(const cuda::CUuuid& uuid) {
  // Not destroyed at exit, because communicators may be destroyed during exit.
  static auto& all = *new std::vector<Device>;
  for (Device& one : all) {
    if (one.uuid == uuid) return one;
  }
  all.push_back({.uuid = uuid, .ends = {}});
  return all.back();
}

// Waits until `blocks` blocks are left to stay, or until no block is lent. `lock` holds the mutex. Entries of the table
// move when another GPU gets one, so the function looks its entry up again.
void wait_for_loans(std::unique_lock<std::mutex>& lock, const cuda::CUuuid& uuid, std::uint32_t capacity,
                    std::uint32_t blocks) {
  returned.wait_for(lock, kLoanWait, [&] {
    const Device& found = find(uuid);
    return found.lent == 0 || found.left_to_stay(capacity) >= blocks;
  });
}

}  // namespace

BlockBudget::Left BlockBudget::left(const cuda::CUuuid& device, std::uint32_t capacity, std::uint32_t wanted) {
  std::unique_lock lock(mutex);
  wait_for_loans(lock, device, capacity, wanted);
  const Device& found = find(device);
  return {.to_stay = found.left_to_stay(capacity), .to_end = found.left_to_end(capacity)};
}

bool BlockBudget::take(const cuda::CUuuid& device, std::uint32_t capacity, Launches launches, std::uint32_t blocks) {
  TUTTI_ASSERT(blocks > 0 && blocks_ == 0);
  std::unique_lock lock(mutex);
  const bool stays = launches == Launches::kStay;
  if (stays) wait_for_loans(lock, device, capacity, blocks);
  Device& found = find(device);
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

BlockLoan::~BlockLoan() {
  captured_ = 0;
  lower();
}

std::uint32_t BlockLoan::raise(const cuda::CUuuid& device, std::uint32_t capacity, std::uint32_t blocks,
                               bool captured) {
  const std::scoped_lock lock(mutex);
  Device& found = find(device);
  device_ = device;
  if (blocks > blocks_) {
    const std::uint32_t free = found.left_to_lend(capacity);
    const std::uint32_t more = std::min(blocks - blocks_, captured ? (free + 1) / 2 : free);
    found.lent += more;
    blocks_ += more;
  }
  const std::uint32_t granted = std::min(blocks, blocks_);
  if (captured) captured_ = std::max(captured_, granted);
  return granted;
}

void BlockLoan::lower() noexcept {
  if (blocks_ == captured_) return;
  {
    const std::scoped_lock lock(mutex);
    find(device_).lent -= blocks_ - captured_;
    blocks_ = captured_;
  }
  returned.notify_all();
}

}  // namespace tutti::detail
