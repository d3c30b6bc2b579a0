// `tutti tune --explain`: here what the runtime predicts for a call, and what it chooses why, by the runtime's
// functions; on a shape what `tutti sim` says, by that one's.
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
  bool tcp = false;     // ranks of this machine talk by TCP
  std::string shape{};  // this, or a file in NCCL's XML format; neither: this machine
  std::string xml_path{};
  std::string parameters_path{};  // empty: what was measured here, else defaults
};

// The table. Errors: kInvalidArgument, kUnsupported, kConfig (TUTTI_TUNE), kSystem.
Result<std::string> explain(const ExplainOptions& options);

}  // namespace tutti::tool
