#include "engine/failure_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tutti {

std::string rank_list(const std::vector<std::uint32_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string late_ranks(const std::vector<std::uint32_t>& ranks) {
  return ranks.empty() ? "its own data to leave" : rank_list(ranks);
}

std::string_view shortage(CallArgument lacked) {
  switch (lacked) {
    case CallArgument::kDescriptors:
      return ": it had no free file descriptor for memory that is shared with it; raise its limit of open files "
             "(ulimit -n)";
    case CallArgument::kMappings:
      return ": it could not map memory that is shared with it; raise vm.max_map_count on its machine, or its "
             "address-space limit (ulimit -v)";
    case CallArgument::kPermission:
      return ": its system does not let it receive memory of another process; see its own error";
    default: return "";
  }
}

std::string_view advice(CallArgument argument, std::span<const CallTag> passed) {
  const bool plans_differ = argument == CallArgument::kAlgorithm || argument == CallArgument::kDigest;
  if (plans_differ && std::any_of(passed.begin(), passed.end(), uses_callers_plan)) {
    return "; call use_plan() alike on all ranks: the same plans, in the same order";
  }
  const bool some_are_internal = std::any_of(
      passed.begin(), passed.end(), [](const CallTag& tag) { return purpose_of(tag) != CallPurpose::kApplication; });
  return some_are_internal ? "; make the same calls on all ranks, with the same CallOptions (uniform, checksum)"
                           : "; give all ranks the same";
}

std::string describe(const Transfer& transfer) {
  const bool plain = transfer.tag.kind == static_cast<std::uint8_t>(CollectiveKind::kSendReceive);
  const bool sends = transfer.direction == Direction::kSend;
  return fmt::format("{}{} #{} of {} {} {} rank {}",
                     plain ? "" : fmt::format("{}_v, ", to_string(CollectiveKind{transfer.tag.kind})),
                     sends ? "send" : "receive", transfer.tag.sequence, transfer.tag.count,
                     to_string(DataType{transfer.tag.type}), sends ? "to" : "from", transfer.peer);
}

std::string describe_unfinished(const Exchange& exchange) {
  const std::vector<const Transfer*> open = exchange.unfinished();
  if (exchange.probes()) return "next_sender()";
  if (open.empty()) return "a group of sends and receives";
  return describe(*open.front()) + (open.size() > 1 ? fmt::format(" and {} other transfers", open.size() - 1) : "");
}

std::vector<std::uint32_t> unfinished_peers(const Exchange& exchange) {
  std::vector<std::uint32_t> peers;
  for (const Transfer* transfer : exchange.unfinished()) peers.push_back(transfer->peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace tutti
