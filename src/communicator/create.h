// Communicator::create() and create_all() with more parameters, for other front ends of the library that have settings
// of their own (src/nccl), for grow() and for Elastic. `defaults` are pairs of TUTTI_* variables and values. A variable
// that is set in the process's environment takes precedence over them. TUTTI_RANK and TUTTI_WORLD_SIZE have no effect
// in `defaults`. In all other respects create() and create_all() behave like the public functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/config.h"
#include "tutti/communicator.h"

namespace tutti::detail {

// `stop`: if another thread sets it, set-up ends soon (but not while this rank waits for a launcher's store), normally
// with kAborted on this rank, and the other ranks are notified (see RendezvousOptions::stop). Null: set-up cannot be
// stopped.
Result<std::unique_ptr<Communicator>> create(const CommunicatorOptions& options, const Variables& defaults,
                                             std::shared_ptr<const std::atomic<bool>> stop = nullptr);
// Like create(), but takes the settings that are in struct Config from `config` instead of the TUTTI_* variables. Of
// `options`, the fields that determine how the rank joins (rank, size, root, job_id, interface, unique_id,
// setup_timeout) and `device` are used. job_key or job_key_file, if set, gives the key; otherwise the key is that of
// `config`. Both timeouts must not be negative.
Result<std::unique_ptr<Communicator>> create_with(const Config& config, const CommunicatorOptions& options,
                                                  std::shared_ptr<const std::atomic<bool>> stop = nullptr);
Result<std::vector<std::unique_ptr<Communicator>>> create_all(std::int32_t size, const CommunicatorOptions& options,
                                                              std::int32_t nodes, const Variables& defaults);

}  // namespace tutti::detail
