// The output of `tutti topo --transports`: the transports to other machines, which ones are selected, and why the
// others are not.
#pragma once

#include <string>

#include "tutti/result.h"

namespace tutti::tool {

// The list for the environment of this process. With `as_json` it is an object {"transports": [{"name", "usable",
// "chosen", "words"}]}. Errors: kConfig, if a TUTTI_* variable is invalid.
Result<std::string> list_transports(bool as_json);

}  // namespace tutti::tool
