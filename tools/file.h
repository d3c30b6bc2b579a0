// Writing a result file so that nobody ever sees half of one, and every failure is told.
#pragma once

#include <string>

#include "tutti/result.h"

namespace tutti::tool {

// Whether write_file() has a chance, asked before the work whose result it is to take.
Status check_writable(const std::string& path);

// The file holds all of `text`, or is left as it was: written under a temporary name in the same folder, synced,
// renamed. Symbolic links stay, and what they lead to is replaced. What is not a regular file (a pipe, a device), or is
// somebody's open one (/dev/stdout), is written to directly, at its end.
Status write_file(const std::string& path, const std::string& text);

// "2026-01-31T12:00:00Z"
std::string utc_now();

}  // namespace tutti::tool
