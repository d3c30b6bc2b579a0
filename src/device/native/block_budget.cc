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

// Maximum time that a new communicator waits for blocks that launches have borrowed. Longer waits would be in vain,
// because these launches probably wait for a rank that is in this set-up.
constexpr std::chrono::milliseconds kLoanWait{1000};
// This many blocks are never lent, so that new communicators usually need not wait.
constexpr std::uint32_t kNeverLent = 2 * kKeptBlocks;

// The blocks that the communicators of this process have taken on one GPU.
struct Device {
  cuda::CUuuid uuid;
  std::uint32_t staying = 0;          // sum of the blocks of all communicators with kStay
  std::uint32_t lent = 0;             // sum of all loans
  std::uint32_t captured = 0;         // those of the lent blocks that captured launches use
  std::uint32_t newcomers = 0;        // number of new communicators that wait for lent blocks
  std::multiset<std::uint32_t> ends;  // the blocks of each communicator with kEnd, one entry for each BlockBudget

  // The blocks of the largest communicator with kEnd. At least one block, because calls in rounds take nothing from
  // the budget and need one block at a time.
  std::uint32_t largest_end() const { return ends.empty() ? 1 : std::max(1u, *ends.rbegin()); }
  // The blocks that are left to a communicator of this type if `borrowed` are lent.
  std::uint32_t left(BlockBudget::Launches launches, std::uint32_t capacity, std::uint32_t borrowed) const {
    const bool stays = launches == BlockBudget::Launches::kStay;
    const std::uint32_t taken = staying + borrowed + (stays ? largest_end() : 0);
    return capacity > taken ? capacity - taken : 0;
  }
  std::uint32_t left_to_lend(std::uint32_t capacity) const {
    const std::uint32_t free = left(BlockBudget::Launches::kStay, capacity, lent);
    return free > kNeverLent ? free - kNeverLent : 0;
  }
};

std::mutex mutex;
// Notified when blocks are returned. Not destroyed at exit, because communicators may be destroyed during exit.
std::condition_variable& returned = *new std::condition_variable;

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

// Waits until `blocks` blocks are left, or until no launch except captured ones has borrowed any, but at most for
// kLoanWait. `lock` holds the mutex. Entries of the table move when another GPU gets one, so the function looks its
// entry up again.
void wait_for_loans(std::unique_lock<std::mutex>& lock, const cuda::CUuuid& uuid, std::uint32_t capacity,
                    BlockBudget::Launches launches, std::uint32_t blocks) {
  ++find(uuid).newcomers;
  returned.wait_for(lock, kLoanWait, [&] {
    const Device& found = find(uuid);
    return found.lent == found.captured || found.left(launches, capacity, found.lent) >= blocks;
  });
  --find(uuid).newcomers;
}

}  // namespace

BlockBudget::Left BlockBudget::left(const cuda::CUuuid& device, std::uint32_t capacity) {
  const std::scoped_lock lock(mutex);
  const Device& found = find(device);
  return {.to_stay = found.left(Launches::kStay, capacity, found.captured),
          .to_end = found.left(Launches::kEnd, capacity, found.captured)};
}

bool BlockBudget::take(const cuda::CUuuid& device, std::uint32_t capacity, Launches launches, std::uint32_t blocks) {
  TUTTI_ASSERT(blocks > 0 && blocks_ == 0);
  std::unique_lock lock(mutex);
  wait_for_loans(lock, device, capacity, launches, blocks);
  Device& found = find(device);
  if (blocks > found.left(launches, capacity, found.lent)) return false;
  if (launches == Launches::kStay) found.staying += blocks;
  if (launches == Launches::kEnd) found.ends.insert(blocks);
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
  returned.notify_all();
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

BlockLoan::~BlockLoan() { end(); }

std::uint32_t BlockLoan::raise(const cuda::CUuuid& device, std::uint32_t capacity, std::uint32_t blocks,
                               bool captured) {
  const std::scoped_lock lock(mutex);
  Device& found = find(device);
  device_ = device;
  const std::uint32_t all = blocks_ + found.left_to_lend(capacity);
  std::uint32_t most = all;
  // While a new communicator waits, launches that are not captured get no more than graphs have anyway, so that the
  // loan can be lowered.
  if (found.newcomers > 0) most = captured_;
  if (captured) most = std::max(captured_, (all + 1) / 2);
  const std::uint32_t granted = std::min(blocks, most);
  if (granted > blocks_) {
    found.lent += granted - blocks_;
    blocks_ = granted;
  }
  if (captured && granted > captured_) {
    found.captured += granted - captured_;
    captured_ = granted;
  }
  return granted;
}

void BlockLoan::lower(std::uint32_t blocks) noexcept {
  const std::uint32_t kept = std::max(blocks, captured_);
  if (blocks_ <= kept) return;
  {
    const std::scoped_lock lock(mutex);
    find(device_).lent -= blocks_ - kept;
    blocks_ = kept;
  }
  returned.notify_all();
}

void BlockLoan::end() noexcept {
  if (captured_ > 0) {
    const std::scoped_lock lock(mutex);
    find(device_).captured -= std::exchange(captured_, 0);
  }
  lower(0);
}

}  // namespace tutti::detail
