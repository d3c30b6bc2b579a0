// Communicator::create() and the like, for a face of the library that has settings of its own (src/nccl): `defaults`,
// pairs of TUTTI_* variables, stand under what the process's environment says. Else as the public functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/config.h"
#include "tutti/communicator.h"
#include "tutti/unique_id.h"

namespace tutti::detail {

// `stop`: when another thread sets it, set-up ends soon with kAborted, and the other ranks are told. Null: none does.
Result<std::unique_ptr<Communicator>> create(const CommunicatorOptions& options, const Variables& defaults,
                                             std::shared_ptr<const std::atomic<bool>> stop = nullptr);
// The same with these settings, whatever the environment says; of the options count those that a Config has not.
Result<std::unique_ptr<Communicator>> create_with(const Config& config, const CommunicatorOptions& options,
                                                  std::shared_ptr<const std::atomic<bool>> stop = nullptr);
Result<std::vector<std::unique_ptr<Communicator>>> create_all(std::int32_t size, const CommunicatorOptions& options,
                                                              std::int32_t nodes, const Variables& defaults);
// Collective over `parent`: the id of the one rank that gives one, to all. `size`: the same on all. Errors:
// kInvalidArgument (nobody gave one), kMismatch (several did, or another size), those of a collective.
Result<UniqueId> share_unique_id(Communicator& parent, const std::optional<UniqueId>& own, std::int32_t size);

}  // namespace tutti::detail
