// TUTTI_API: marks the symbols that the shared library exports. The library is built with hidden visibility, so all
// other symbols are private.
#pragma once

#define TUTTI_API __attribute__((visibility("default")))
