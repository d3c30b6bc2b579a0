#include "job/memory_sharing.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "base/log.h"
#include "transports/shm/mapping.h"
#include "transports/shm/shared_heap.h"

namespace tutti {

Result<std::string> shared_memory_address(const Config& config, const UnixExchange& exchange, std::uint32_t rank) {
  const Log log(config.log_level, static_cast<std::int32_t>(rank));
  if (const std::string problem = shared_heap_problem(); !problem.empty()) {
    log.write(LogLevel::kWarn, "the shared heap serves no memory: {}; calls use the memory that the program has",
              problem);
  }
  const std::optional<Error>& refusal = Mapping::refusal();
  if (!refusal) return exchange.address();
  if (config.transport == TransportPolicy::kShm) {
    Error error = *refusal;
    error.message =
        fmt::format("TUTTI_TRANSPORT=shm, but the system forbids shared memory: {}; use TUTTI_TRANSPORT=auto or tcp",
                    error.message);
    return error;
  }
  if (!network_only(config.transport)) {
    log.write(LogLevel::kWarn, "{}; this rank shares no memory, and uses TCP even to ranks of its own machine",
              refusal->message);
  }
  return std::string();
}

}  // namespace tutti
