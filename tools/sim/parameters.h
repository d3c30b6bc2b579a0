// A file of parameters of the cost model, for commands that predict times.
#pragma once

#include <string>

#include "model/parameters.h"
#include "tutti/result.h"

namespace tutti::tool {

// Errors: read_file()'s; wrong_content() with the place in the file and what is wrong.
Result<Parameters> read_parameters(const std::string& path);

}  // namespace tutti::tool
