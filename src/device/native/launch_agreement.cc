#include "device/native/launch_agreement.h"

#include <algorithm>

namespace tutti::detail {
namespace {

constexpr std::string_view kSeveralContexts =
    "ranks of one process use several CUDA contexts of one GPU: use its primary context in all of them";
constexpr std::string_view kSharedTwice =
    "ranks of several processes share a GPU, and a process has several ranks on one GPU: avoid one of the two";

}  // namespace

LaunchAgreement agree_on_launches(std::span<const DeviceOffer> offers) {
  LaunchAgreement agreed;
  const auto by_the_host = [](std::string_view reason) { return LaunchAgreement{.blocks = 0, .reason = reason}; };
  std::uint32_t blocks = offers.front().blocks;
  std::uint32_t stay = blocks;
  std::uint32_t end = blocks;
  bool one_team = true;
  for (const DeviceOffer& one : offers) {
    std::uint32_t here = 0;
    one_team &= one.same_device(offers.front()) && one.same_process(offers.front());
    for (const DeviceOffer& other : offers) {
      if (!one.same_device(other)) continue;
      ++here;
      agreed.shared |= &one != &other && one.same_process(other);
      if (one.same_process(other) && one.context != other.context) return by_the_host(kSeveralContexts);
      agreed.in_rounds |= !one.same_process(other);
    }
    blocks = std::min(blocks, one.blocks_at_once / here);
    stay = std::min(stay, one.left.to_stay / here);
    end = std::min(end, one.left.to_end / here);
  }
  // In rounds, streams wait for each other, and a communicator uses rounds on all of its GPUs or on none. Streams of
  // one process and GPU share hardware queues, so a stream that waits could hold up the one that it needs.
  if (agreed.in_rounds && agreed.shared) return by_the_host(kSharedTwice);
  if (offers.front().copies > 0 && offers.size() > 1) {
    using Method = CopyEngines::Method;
    agreed.copy_method = one_team ? Method::kLaunchGroup : agreed.shared ? Method::kNone : Method::kWindows;
  }
  if (one_team) {
    agreed.launches = BlockBudget::Launches::kEnd;
    blocks = std::min(blocks, end);
  } else if (!agreed.in_rounds && stay > 0) {
    agreed.launches = BlockBudget::Launches::kStay;
  } else if (!agreed.in_rounds && !agreed.change_to_rounds()) {
    blocks = 0;
  }
  if (blocks == 0) return by_the_host(kTooFewBlocks);
  agreed.blocks = blocks;
  const bool borrows = agreed.launches == BlockBudget::Launches::kStay;
  agreed.kept_blocks = borrows ? std::min({blocks, stay, kKeptBlocks}) : blocks;
  return agreed;
}

}  // namespace tutti::detail
