// BlockBudget: how many thread blocks each communicator of this process may launch at once on a GPU, so that several
// communicators on one GPU never prevent each other from running (docs/decisions/0013, "Several communicators on one
// GPU").
//
// There are two types of launches. Kernels that wait for a kernel of another GPU *stay* on the GPU until that kernel
// has run. Kernels *end* by themselves if all ranks that they wait for are in the same launch. A GPU begins launches
// in the order in which they were submitted, so a launch for which there are not enough free blocks delays all
// launches behind it. This class therefore keeps one invariant: the blocks of all communicators that stay, plus the
// blocks of the largest one that ends, fit on the device together. Then the launch in front always gets its blocks,
// either at once or when others have ended.
//
// The budget covers this process only, because a GPU divides its time among processes. (Under MPS it does not:
// there, two processes may still prevent each other from running.)
#pragma once

#include <cstdint>

#include "cuda/driver_types.h"

namespace tutti::detail {

// The blocks that one communicator has taken on one GPU, for all of its ranks in this process or for one of them.
// The destructor returns them. Different objects may be used by different threads at the same time.
class BlockBudget {
 public:
  enum class Launches : std::uint8_t { kStay, kEnd };
  // How many blocks are available on a GPU on which `capacity` blocks of our kernels can be resident at once.
  struct Left {
    std::uint32_t to_stay = 0;  // half of the available blocks, so that some are left for later communicators
    std::uint32_t to_end = 0;
  };
  static Left left(const cuda::CUuuid& device, std::uint32_t capacity);

  BlockBudget() = default;
  BlockBudget(BlockBudget&& other) noexcept;
  BlockBudget& operator=(BlockBudget&& other) noexcept;
  ~BlockBudget();

  // Takes blocks. Returns false, and takes nothing, if fewer are available because others have taken some meanwhile.
  bool take(const cuda::CUuuid& device, std::uint32_t capacity, Launches launches, std::uint32_t blocks);

 private:
  void give_back();

  cuda::CUuuid device_{};
  Launches launches_ = Launches::kEnd;
  std::uint32_t blocks_ = 0;  // 0: none were taken
};

}  // namespace tutti::detail
