// The version of the headers that a program is compiled against, and of the library that it runs with.
#pragma once

#include <string_view>

#include "tutti/export.h"

#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0

namespace tutti {
// "0.1.0", of the library in use.
TUTTI_API std::string_view version();
}  // namespace tutti
