// BlockBudget: which share of a GPU's blocks each communicator of this process may launch at once, so that several on
// one GPU never keep each other from running for good (docs/decisions/0013, "Several communicators on one GPU").
//
// Kernels that wait for a kernel of another GPU *stay* until that has run; kernels whose ranks are all in their own
// launch *end* by themselves. GPUs begin launches in the order in which they come, so one that finds no room holds up
// all behind it. Hence what is kept here: the blocks of all that stay, and those of the largest that ends, fit on the
// device together. Then whatever is in front finds room, at once or when others have ended.
//
// Of this process alone: GPUs divide their time among processes. (Under MPS they do not: there two jobs are.)
#pragma once

#include <cstdint>

#include "cuda/driver_types.h"

namespace tutti::detail {

enum class Launches : std::uint8_t { kStay, kEnd };

// What one communicator's ranks of this process have on one GPU, or one of these ranks. Given back at its end.
// Different ones by different threads.
class BlockBudget {
 public:
  // How much is left on a GPU on which `capacity` blocks of our kernels run at once.
  struct Left {
    std::uint32_t to_stay = 0;  // half of what could be had, so that there is some for later ones
    std::uint32_t to_end = 0;
  };
  static Left left(const cuda::CUuuid& device, std::uint32_t capacity);

  BlockBudget() = default;
  BlockBudget(BlockBudget&& other) noexcept;
  BlockBudget& operator=(BlockBudget&& other) noexcept;
  ~BlockBudget();

  // False, and nothing is taken: there is less, since others have taken some meanwhile.
  bool take(const cuda::CUuuid& device, std::uint32_t capacity, Launches launches, std::uint32_t blocks);

 private:
  void give_back();

  cuda::CUuuid device_{};
  Launches launches_ = Launches::kEnd;
  std::uint32_t blocks_ = 0;  // 0: nothing was taken
};

}  // namespace tutti::detail
