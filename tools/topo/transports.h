// The output of `tutti topo --transports`: the transports between machines, whether each can be used and is selected,
// and the reasons.
#pragma once

#include <string>

#include "tutti/result.h"

namespace tutti::tool {

// Returns the list for the TUTTI_* variables and the devices of this process, as text, or with `as_json` as a JSON
// object {"transports": [{"name", "usable", "chosen", "words"}]}. Errors: kConfig, if a TUTTI_* variable is invalid.
Result<std::string> list_transports(bool as_json);

}  // namespace tutti::tool
