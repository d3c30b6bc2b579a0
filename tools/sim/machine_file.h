// read_machine_file(): reads a machine from a file in NCCL's XML format, for commands that only use the machine.
// `tutti topo --xml` reports all details of such a file.
#pragma once

#include <string>

#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti::tool {

struct MachineFile {
  Graph machine{};           // has the file's name if the file does not name it
  std::size_t warnings = 0;  // number of warnings, which `tutti topo --xml` prints
};

// Errors: those of read_file(); wrong_content() with the position of the first error in the file and the remedy.
Result<MachineFile> read_machine_file(const std::string& path);

}  // namespace tutti::tool
