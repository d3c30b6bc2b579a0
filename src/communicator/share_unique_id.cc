#include "communicator/share_unique_id.h"

#include <fmt/format.h>

#include <vector>

#include "base/assert.h"
#include "base/crypto/key.h"

namespace tutti::detail {
namespace {

struct GrowRequest {  // the data that each rank contributes to share_unique_id()
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

}  // namespace tutti::detail
