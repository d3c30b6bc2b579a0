// The properties of a communicator that plugins receive when it is created.
#pragma once

#include <cstdint>

namespace tutti::nccl {

struct PluginFacts {
  std::uint64_t comm_id = 0;   // the same on all ranks; other communicators of the job have other numbers
  const char* name = nullptr;  // ncclConfig_t::commName, which must outlive the plugin's use of it; may be null
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::int32_t nodes = 1;
  std::int32_t least_ranks_per_node = 1;
  std::int32_t most_ranks_per_node = 1;
};

}  // namespace tutti::nccl
