#include "communicator/point_to_point.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "engine/arguments.h"

namespace tutti::detail {
namespace {

// Checks one send or receive and makes its operation, which the caller then submits. Hold the submission mutex.
Result<std::shared_ptr<Operation>> prepare_transfer(CommunicatorImpl& communicator, Direction direction,
                                                    const void* data, std::size_t count, DataType type,
                                                    std::int32_t peer, const CallOptions& options) {
  auto checked = check_transfer(direction, data, count, type, peer, communicator.membership().caller());
  if (!checked) return checked.error();
  if (checked->peer == communicator.membership().rank) {
    return invalid_argument(
        fmt::format("rank {} cannot wait for itself: put the send and the receive into one Group", peer));
  }
  TUTTI_TRY(communicator.groups().refuse());
  return communicator.operations().prepare_exchange({.transfers = {*checked}, .own = {}}, options);
}

// One receive from every peer. These receives are used only to look for a message, and never take one.
Result<std::vector<Transfer>> probes_for(const Membership& membership) {
  if (membership.ranks == 1) return invalid_argument("a communicator of one rank has no peers that could send");
  std::vector<Transfer> probes;
  for (std::uint32_t peer = 0; peer < membership.ranks; ++peer) {
    if (peer == membership.rank) continue;
    Transfer transfer;
    transfer.direction = Direction::kReceive;
    transfer.peer = peer;
    transfer.tag.kind = static_cast<std::uint8_t>(CollectiveKind::kSendReceive);
    probes.push_back(transfer);
  }
  return probes;
}

}  // namespace

Status transfer(CommunicatorImpl& communicator, Direction direction, const void* data, std::size_t count, DataType type,
                std::int32_t peer, const CallOptions& options) {
  std::unique_lock lock(communicator.submission_mutex());
  return communicator.run_operation(prepare_transfer(communicator, direction, data, count, type, peer, options), lock);
}

Result<Work> start_transfer(CommunicatorImpl& communicator, Direction direction, const void* data, std::size_t count,
                            DataType type, std::int32_t peer, const CallOptions& options) {
  std::unique_lock lock(communicator.submission_mutex());
  return communicator.start_operation(prepare_transfer(communicator, direction, data, count, type, peer, options),
                                      lock);
}

Result<std::int32_t> next_sender(CommunicatorImpl& communicator, const CallOptions& options) {
  auto probes = probes_for(communicator.membership());
  if (!probes) return probes.error();
  CheckedExchange exchange;
  exchange.transfers = *std::move(probes);
  std::unique_lock lock(communicator.submission_mutex());
  TUTTI_TRY(communicator.groups().refuse());
  auto operation = communicator.operations().prepare_exchange(
      std::move(exchange), {.timeout = options.timeout, .uniform = options.uniform, .checksum = options.checksum});
  if (operation.ok()) (*operation)->probes = true;
  TUTTI_TRY(communicator.run_operation(operation, lock));
  return static_cast<std::int32_t>((*operation)->exchange->found());
}

Result<std::optional<std::int32_t>> try_next_sender(CommunicatorImpl& communicator) {
  auto probes = probes_for(communicator.membership());
  if (!probes) return probes.error();
  {
    const std::scoped_lock lock(communicator.submission_mutex());
    TUTTI_TRY(communicator.groups().refuse());
  }
  auto found = communicator.engine().look_for_message(*std::move(probes));
  if (!found) return found.error();
  return *found ? std::optional(static_cast<std::int32_t>(**found)) : std::nullopt;
}

}  // namespace tutti::detail
