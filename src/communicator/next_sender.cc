// next_sender() and try_next_sender(): find a peer that has sent a message for which this rank has called no
// receive.
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "communicator/communicator_impl.h"
#include "engine/arguments.h"

namespace tutti {
namespace detail {

// One receive from every peer. They are used only to look for a message, and never take one.
Result<std::vector<Transfer>> CommunicatorImpl::probes() const {
  if (ranks_ == 1) return invalid_argument("a communicator of one rank has no peers that could send");
  std::vector<Transfer> probes;
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    Transfer transfer;
    transfer.direction = Direction::kReceive;
    transfer.peer = peer;
    transfer.tag.kind = static_cast<std::uint8_t>(CollectiveKind::kSendReceive);
    probes.push_back(transfer);
  }
  return probes;
}

Result<std::int32_t> CommunicatorImpl::next_sender(const CallOptions& options) {
  auto probes = this->probes();
  if (!probes) return probes.error();
  CheckedExchange exchange;
  exchange.transfers = *std::move(probes);
  std::shared_ptr<Operation> operation;  // shared with the engine's queue
  {
    const std::scoped_lock lock(mutex_);
    TUTTI_TRY(refuse_in_group());
    auto prepared = prepare_exchange(std::move(exchange), {.timeout = options.timeout});
    if (!prepared) return prepared.error();
    operation = std::move(*prepared);
    operation->probes = true;
    TUTTI_TRY(submit(operation, Engine::Progress::kByCaller));
  }
  TUTTI_TRY(engine_.wait(*operation));
  return static_cast<std::int32_t>(operation->exchange->found());
}

Result<std::optional<std::int32_t>> CommunicatorImpl::try_next_sender() {
  auto probes = this->probes();
  if (!probes) return probes.error();
  {
    const std::scoped_lock lock(mutex_);
    TUTTI_TRY(refuse_in_group());
  }
  auto found = engine_.look_for_message(*std::move(probes));
  if (!found) return found.error();
  return *found ? std::optional(static_cast<std::int32_t>(**found)) : std::nullopt;
}

}  // namespace detail
}  // namespace tutti
