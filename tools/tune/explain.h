// `tutti tune --explain`: shows, for this machine, the predictions of the runtime for a call, the selected algorithm
// and the reason. It uses the functions of the runtime. For a shape, it shows the results of `tutti sim`, with the
// functions of that command.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::tool {

struct ExplainOptions {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint64_t bytes = 0;  // bytes of one block
  std::uint32_t ranks = 0;  // 0: 2 on this machine; all ranks of a shape
  std::uint32_t machines = 1;
  bool tcp = false;  // ranks of this machine communicate over TCP
  // This, or a file in NCCL's XML format (xml_path). If both are empty: this machine.
  std::string shape{};
  std::string xml_path{};
  std::string parameters_path{};  // empty: costs that were measured here, otherwise defaults
};

// Returns the text to print. Errors: kInvalidArgument, kUnsupported, kConfig (TUTTI_TUNE), kSystem.
Result<std::string> explain(const ExplainOptions& options);

}  // namespace tutti::tool
