// read_parameters(): reads a file with parameters of the cost model (docs/parameters-json.md), for commands that
// predict times.
#pragma once

#include <string>

#include "model/parameters.h"
#include "tutti/result.h"

namespace tutti::tool {

// Errors: those of read_file(); those of wrong_content(), with a message that has the path, the cause and, usually, the
// position or the field in the file (not, for example, if the file is too long).
Result<Parameters> read_parameters(const std::string& path);

}  // namespace tutti::tool
