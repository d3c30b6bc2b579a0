// `tutti tune --explain`: what the tuner predicts for a call, and what is chosen why, here or on a shape.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::tool {

struct ExplainOptions {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint64_t bytes = 0;  // of one block
  std::uint32_t ranks = 0;  // 0: 2 here, all of a shape's
  std::uint32_t machines = 1;
  bool tcp = false;               // ranks of this machine talk by TCP
  std::string shape{};            // empty: this machine
  std::string parameters_path{};  // empty: what was measured here, else defaults
};

// The table. Errors: kInvalidArgument, kUnsupported, kConfig (TUTTI_TUNE), kSystem.
Result<std::string> explain(const ExplainOptions& options);

}  // namespace tutti::tool
