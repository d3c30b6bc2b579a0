// LaunchAgreement: how the GPUs of a communicator run its calls, as the ranks decide it during set-up
// (device_resources_maker.cc). agree_on_launches() is a pure function of the offers of all ranks, so all ranks come to
// the same result.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "device/native/block_budget.h"
#include "device/native/copy_engines.h"
#include "device/native/device_offer.h"

namespace tutti::detail {

struct LaunchAgreement {
  // The most thread blocks of a launch of one rank; 0: the host has to carry out the calls, and `reason` says why.
  std::uint32_t blocks = 0;
  // How many of them a launch always gets. If launches stay on the GPU (BlockBudget), they can borrow the others.
  std::uint32_t kept_blocks = 0;
  std::string_view reason;
  bool shared = false;  // some process has several ranks of the communicator on one GPU
  // Calls run in rounds, because some GPU has ranks of several processes, or too few free blocks for kernels that
  // wait for kernels of other GPUs.
  bool in_rounds = false;
  // The type of the launches, which agree_on_launches() sets and change_to_rounds() does not change. Empty if the ranks
  // agreed on calls in rounds, which take nothing from the budget.
  std::optional<BlockBudget::Launches> launches{};
  CopyEngines::Method copy_method = CopyEngines::Method::kNone;

  // Switches to calls in rounds. Their kernels end without waiting for peers, so they need no blocks from the
  // budget. Returns false if that is not possible, because several ranks of one process share a GPU.
  bool change_to_rounds() {
    in_rounds = true;
    kept_blocks = blocks;
    return !shared;
  }
};

inline constexpr std::string_view kTooFewBlocks =
    "some GPU has too few free blocks for the kernels of all its ranks, because other communicators use the rest: "
    "destroy communicators that are no longer needed, or set a smaller TUTTI_DEVICE_BLOCKS";

// `offers`: those of all ranks, at least one, with the same settings.
LaunchAgreement agree_on_launches(std::span<const DeviceOffer> offers);

}  // namespace tutti::detail
