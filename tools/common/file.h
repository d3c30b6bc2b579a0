// Writing a result file so that nobody ever sees half of one, and every failure is told; reading a file of somebody's
// with a bound. Nothing waits for the other end of a pipe for more than kPipeWait.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "tutti/result.h"

namespace tutti::tool {

inline constexpr std::chrono::milliseconds kPipeWait{5000};

// Whether write_file() has a chance, asked before the work whose result it is to take.
Status check_writable(const std::string& path);

// The file holds all of `text`, or is left as it was: written under a temporary name in the same folder, synced,
// renamed. Symbolic links stay, and what they lead to is replaced. What is not a regular file (a pipe, a device), or is
// somebody's open one (/dev/stdout), is written to directly, at its end; a named pipe is given time to get a reader.
// Block devices are refused: what a disk holds is nobody's to lose by a slip.
Status write_file(const std::string& path, const std::string& text);

// All of a file, a pipe or a device, but no more than `most_bytes`. Errors: kSystem, also where a pipe stays silent for
// kPipeWait, or has nobody who writes.
Result<std::string> read_file(const std::string& path, std::size_t most_bytes);

// False: standard output has not taken all that was printed, and stderr says so for `command`, in the same words for
// every command. Empty: `tutti` itself.
bool output_was_taken(std::string_view command);

// "2026-01-31T12:00:00Z"
std::string utc_now();

}  // namespace tutti::tool
