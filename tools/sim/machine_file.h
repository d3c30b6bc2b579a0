// read_machine_file(): reads a machine from a file in NCCL's XML format, for commands that only use the machine.
// They report only the first error of the file. `tutti topo --xml` reports all errors and warnings of such a file.
#pragma once

#include <string>

#include "topology/graph.h"
#include "tutti/result.h"

namespace tutti::tool {

struct MachineFile {
  // Graph::name is the name in the file, or the file's own name without its folder if the file contains none
  Graph machine{};
  // number of warnings about the file; `tutti topo --xml` prints them
  std::size_t warnings = 0;
};

// Errors: those of read_file(); those of wrong_content(), with a message that has the position of the first error in
// the file, if it has one, and the number of errors.
Result<MachineFile> read_machine_file(const std::string& path);

}  // namespace tutti::tool
