// BlockBudget and BlockLoan: how many thread blocks the communicators of this process may have on a GPU at the same
// time, so that several communicators on one GPU never prevent each other from running (docs/decisions/0013, "Several
// communicators on one GPU").
//
// There are two types of launches. A kernel that waits for kernels of other GPUs *stays* on its GPU until those
// kernels have run. A kernel *ends* by itself if all ranks that it waits for are in the same launch. A GPU begins
// launches in the order in which they were submitted, so a launch for which there are not enough free blocks delays
// all launches behind it. A few blocks suffice for a launch, which then needs longer. So each communicator with kernels
// that stay *keeps* a few blocks as long as it exists, and its launches *borrow* more. Together these classes keep one
// invariant: the blocks that are kept, those that are lent, and the blocks of the largest communicator with kernels
// that end fit on the device together. Then the launch in front always gets its blocks, either at once or after running
// kernels of the second type have ended.
//
// The budget covers this process only, because a GPU divides its time among processes. (Under CUDA MPS, processes
// share the GPU at the same time. Then two processes may still prevent each other from running.)
#pragma once

#include <cstdint>

#include "cuda/driver_types.h"

namespace tutti::detail {

// The most blocks that a rank keeps if its kernels stay; fewer if fewer are left, or if TUTTI_DEVICE_BLOCKS is smaller.
// A launch needs at least one block for each channel of its plan. Within a machine, the built-in plan with the most
// channels (double_tree) has 4.
inline constexpr std::uint32_t kKeptBlocks = 4;

// The blocks that one communicator has taken on one GPU, for all of its ranks in this process (kEnd) or for one
// rank (kStay). The destructor returns them. Different objects may be used by different threads at the same time.
class BlockBudget {
 public:
  enum class Launches : std::uint8_t { kStay, kEnd };
  // How many blocks a further communicator may take on a GPU, when launches have returned what they have borrowed. The
  // blocks of captured launches count as taken. `capacity`: how many blocks of the library's kernels can be resident on
  // the GPU at once (RankDevice::Code::blocks_at_once).
  struct Left {
    std::uint32_t to_stay = 0;
    std::uint32_t to_end = 0;
  };
  static Left left(const cuda::CUuuid& device, std::uint32_t capacity);

  BlockBudget() = default;
  BlockBudget(BlockBudget&& other) noexcept;
  BlockBudget& operator=(BlockBudget&& other) noexcept;
  ~BlockBudget();

  // Takes `blocks` blocks. Call it at most once for each object. If launches have borrowed some of them, waits at most
  // kLoanWait, and meanwhile only captured launches may borrow more. Returns false, and takes nothing, if fewer than
  // `blocks` are left after this wait, for example because others have taken some since left() was called.
  bool take(const cuda::CUuuid& device, std::uint32_t capacity, Launches launches, std::uint32_t blocks);

 private:
  void give_back();

  cuda::CUuuid device_{};
  Launches launches_ = Launches::kEnd;
  std::uint32_t blocks_ = 0;  // 0: this object has taken no blocks
};

// The blocks that the launches of one LaunchGroup have borrowed. The destructor returns them. Hold the group's mutex
// for every function except the destructor. Different objects may be used by different threads at the same time.
class BlockLoan {
 public:
  BlockLoan() = default;
  ~BlockLoan();
  BlockLoan(const BlockLoan&) = delete;
  BlockLoan& operator=(const BlockLoan&) = delete;

  // For a launch that can use `blocks` borrowed blocks: raises the loan to this number, or as far as others leave some.
  // Returns the number of borrowed blocks that the launch may use. All calls are for the same device.
  //
  // - The launches of a communicator run one after the other, so they share the loan.
  // - `captured`: the launch becomes a part of a graph, which may run at any time, so its blocks stay lent. When a
  //   launch is captured, all captured launches together may get at most half (rounded up) of the blocks that this
  //   communicator could then borrow.
  // - While a new communicator waits for blocks, a launch that is not captured may only use those blocks of this loan
  //   that captured launches have borrowed.
  std::uint32_t raise(const cuda::CUuuid& device, std::uint32_t capacity, std::uint32_t blocks, bool captured);
  // Returns borrowed blocks that no launch uses any more. `blocks`: the largest number of borrowed blocks that any
  // launch uses that was not captured and has not ended. The blocks of captured launches stay lent.
  void lower(std::uint32_t blocks) noexcept;
  void end() noexcept;  // returns all blocks, also those of captured launches

 private:
  cuda::CUuuid device_{};
  std::uint32_t blocks_ = 0;
  std::uint32_t captured_ = 0;  // those of blocks_ that captured launches use
};

}  // namespace tutti::detail
