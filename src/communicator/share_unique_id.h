// share_unique_id(): a round of grow(), in which the rank that has made a unique id passes it to the others. It has no
// state, so any thread may call it. Also used by src/nccl.
#pragma once

#include <cstdint>
#include <optional>

#include "tutti/communicator.h"
#include "tutti/unique_id.h"

namespace tutti::detail {

// Collective over `parent`: exactly one rank passes a unique id, and all ranks receive it. `size` must be the same
// on all ranks. Errors: kInvalidArgument (no rank passed an id), kMismatch (several ranks did, or the sizes differ),
// those of a collective.
Result<UniqueId> share_unique_id(Communicator& parent, const std::optional<UniqueId>& own, std::int32_t size);

}  // namespace tutti::detail
