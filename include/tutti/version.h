// The version of the headers (macros, fixed when the program is compiled) and of the library (a function, because a
// program may load another version of the library than that of the headers).
#pragma once

#include <string_view>

#include "tutti/export.h"

#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0

namespace tutti {
// The version of the library that is loaded, for example "0.1.0".
TUTTI_API std::string_view version();
}  // namespace tutti
