// A machine from a file in NCCL's XML format, for commands that only use it; `tutti topo --xml` tells all about it.
#pragma once

#include <string>

#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti::tool {

struct MachineFile {
  Graph machine{};           // with the file's name where it has none
  std::size_t warnings = 0;  // that `tutti topo --xml` prints
};

// Errors: read_file()'s; wrong_content() with the first fault's place and what to do.
Result<MachineFile> read_machine_file(const std::string& path);

}  // namespace tutti::tool
