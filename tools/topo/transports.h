// `tutti topo --transports`: what can carry messages between this machine and others, what is chosen, and why the
// others are not.
#pragma once

#include <string>

#include "tutti/result.h"

namespace tutti::tool {

// By the environment of this process. `as_json`: one object, {"transports": [{"name", "usable", "chosen", "words"}]}.
// Errors: kConfig: a variable cannot be read.
Result<std::string> list_transports(bool as_json);

}  // namespace tutti::tool
