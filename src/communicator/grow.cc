// grow(): makes a communicator of the ranks of this one and of newcomers, which call create() with the same unique
// id.
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "base/assert.h"
#include "communicator/communicator_impl.h"
#include "communicator/create.h"
#include "device/rank_device.h"

namespace tutti::detail {
namespace {

constexpr std::int32_t kMostRanks = 65535;

struct GrowRequest {  // what each rank contributes to share_unique_id()
  std::int32_t size = 0;
  std::int32_t has_id = 0;
  UniqueId id{};
};
static_assert(sizeof(GrowRequest) == 136 && sizeof(Wiped<GrowRequest>) == sizeof(GrowRequest));

}  // namespace

Result<UniqueId> share_unique_id(Communicator& parent, const std::optional<UniqueId>& own, std::int32_t size) {
  Wiped<GrowRequest> mine;
  mine.size = size;
  mine.has_id = own ? 1 : 0;
  if (own) mine.id = *own;
  std::vector<Wiped<GrowRequest>> all(static_cast<std::size_t>(parent.size()));
  TUTTI_TRY(parent.all_gather(&mine, all.data(), sizeof(GrowRequest), DataType::kUint8));
  std::optional<UniqueId> found;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto number = static_cast<std::int32_t>(rank);
    if (all[rank].size != all[0].size) {
      return Error{ErrorCode::kMismatch, ErrorScope::kCall, number,
                   fmt::format("rank 0 wants to grow to {} ranks, rank {} to {}: give the same on all", all[0].size,
                               rank, all[rank].size)};
    }
    if (all[rank].has_id == 0) continue;
    if (found) {
      return Error{ErrorCode::kMismatch, ErrorScope::kCall, number,
                   "several ranks passed a unique id: only the rank that made it may pass it"};
    }
    found = all[rank].id;
  }
  if (found) return *found;
  return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
               "no rank passed a unique id: the rank that made it must pass it"};
}

Result<std::unique_ptr<Communicator>> CommunicatorImpl::grow(Communicator& self, std::int32_t size,
                                                             const std::optional<UniqueId>& id) {
  if (job_context_ == nullptr) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1, "a communicator of a simulation cannot grow"};
  }
  if (size <= static_cast<std::int32_t>(ranks_) || size > kMostRanks) {
    return invalid_argument(
        fmt::format("grow: size {} is not greater than the {} ranks of this communicator, or exceeds {}", size, ranks_,
                    kMostRanks));
  }
  auto grown = [&]() -> Result<std::unique_ptr<Communicator>> {
    auto shared = share_unique_id(self, id, size);
    if (!shared) return shared.error();
    CommunicatorOptions options;
    options.rank = static_cast<std::int32_t>(rank_);
    options.size = size;
    options.unique_id = *shared;
    options.device = job_context_->device == nullptr ? CommunicatorOptions::kNoDevice : job_context_->device->number();
    Config config = job_context_->config;
    config.timeout = timeout_;
    return create_with(config, options);
  }();
  if (grown) return grown;
  Error error = std::move(grown).error();
  error.message = "grow: " + error.message;
  if (!engine_.broken()) error.scope = ErrorScope::kCall;
  return error;
}

}  // namespace tutti::detail
