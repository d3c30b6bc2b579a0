// `tutti tune --explain`: shows for a call the predicted time of each algorithm, the algorithm that the library would
// select on this machine, and the reason. It calls the same functions as the library. For another machine (a shape or
// an XML file), it shows the times of `tutti sim`, with the functions of that command.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::tool {

struct ExplainOptions {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint64_t bytes = 0;  // bytes of one block of the call
  std::uint32_t ranks = 0;  // 0: 2 ranks on each machine like this one, or all ranks of the shape or XML file
  std::uint32_t machines = 1;
  bool tcp = false;  // only for this machine; true: its ranks communicate over TCP and not through shared memory
  // The name of a shape, or the path of a file in NCCL's XML format. If both are empty: this machine, and others like
  // it if `machines` is more than 1.
  std::string shape{};
  std::string xml_path{};
  // A file of costs. Empty: for this machine, the costs that `tutti tune` has measured, or defaults if there are none;
  // for a shape or an XML file, the defaults for that machine.
  std::string parameters_path{};
};

// Returns the text to print. Errors: kInvalidArgument, kUnsupported, kConfig (for example TUTTI_TUNE), kSystem.
Result<std::string> explain(const ExplainOptions& options);

}  // namespace tutti::tool
