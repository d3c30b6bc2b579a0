#include "engine/transfer_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

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
