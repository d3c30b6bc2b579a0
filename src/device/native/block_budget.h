// BlockBudget: how many thread blocks each communicator of this process may launch at once on a GPU, so that several
// communicators on one GPU never prevent each other from running (docs/decisions/0013, "Several communicators on one
// GPU").
//
// There are two types of launches. A kernel that waits for kernels of other GPUs *stays* on its GPU until those
// kernels have run. A kernel *ends* by itself if all ranks that it waits for are in the same launch. A GPU begins
// launches in the order in which they were submitted, so a launch for which there are not enough free blocks delays
// all launches behind it. This class therefore keeps one invariant: the blocks of all communicators with kernels
// that stay, plus the blocks of the largest communicator with kernels that end, fit on the device together. Then the
// launch in front always gets its blocks, either at once or after running kernels of the second type have ended.
//
// The budget covers this process only, because a GPU divides its time among processes. (Under CUDA MPS, processes
// share the GPU at the same time. Then two processes may still prevent each other from running.)
#pragma once

#include <cstdint>

#include "cuda/driver_types.h"

namespace tutti::detail {

// The blocks that one communicator has taken on one GPU, for all of its ranks in this process (kEnd) or for one
// rank (kStay). The destructor returns them. Different objects may be used by different threads at the same time.
class BlockBudget {
 public:
  enum class Launches : std::uint8_t { kStay, kEnd };
  // How many blocks a further communicator may take on a GPU. `capacity`: how many blocks of our kernels can be
  // resident on the GPU at once (RankDevice::Code::blocks_at_once).
  struct Left {
    // for kStay: half of the free blocks, rounded up, so that some are left for later communicators
    std::uint32_t to_stay = 0;
    std::uint32_t to_end = 0;
  };
  static Left left(const cuda::CUuuid& device, std::uint32_t capacity);

  BlockBudget() = default;
  BlockBudget(BlockBudget&& other) noexcept;
  BlockBudget& operator=(BlockBudget&& other) noexcept;
  ~BlockBudget();

  // Takes `blocks` blocks. Call it at most once for each object. Returns false, and takes nothing, if fewer are
  // available, because others have taken some since left() was called.
  bool take(const cuda::CUuuid& device, std::uint32_t capacity, Launches launches, std::uint32_t blocks);

 private:
  void give_back();

  cuda::CUuuid device_{};
  Launches launches_ = Launches::kEnd;
  std::uint32_t blocks_ = 0;  // 0: this object has taken no blocks
};

}  // namespace tutti::detail
