// Functions that write result files and read input files. A regular file is replaced as a whole, so that other
// processes do not see a half-written one. Reading has a size limit. If a path is a named pipe (not below /proc/ or
// /dev/fd/), writing waits at most kPipeWait for a process that opens the pipe to read, and then without limit until
// that process has read enough. Reading a pipe or device waits at most kPipeWait for each further piece of data.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "tutti/result.h"

namespace tutti::tool {

inline constexpr std::chrono::milliseconds kPipeWait{5000};

// Checks that write_file() can probably write to `path`. Commands call it before long work, so that they fail at once
// and not when they write the result. Errors: kSystem.
Status check_writable(const std::string& path);

// Writes `text` to a file. A regular file is replaced as a whole, and a missing one is created: the text is written to
// a temporary file in the same folder, which is synced and then renamed. If this fails, the old content remains. A
// symbolic link remains a link, and its target is replaced. If the path is not a regular file (a pipe, a device) or
// leads to /proc/ or /dev/fd/ (for example /dev/stdout), the text is appended to it directly. If a named pipe has no
// reader, the function waits for one for at most kPipeWait, and then fails. Block devices are refused, because a typing
// error could destroy the data of a disk. Errors: kSystem.
Status write_file(const std::string& path, const std::string& text);

// Reads a file, a pipe or a device up to its end, but at most `most_bytes` bytes; the rest of a longer file is ignored.
// Errors: kSystem, also if no data arrives from a pipe or device for kPipeWait.
Result<std::string> read_file(const std::string& path, std::size_t most_bytes);

// Flushes standard output. If not everything that this process has printed there could be written, prints an error
// message of the subcommand `command` (empty: of `tutti` itself) to stderr and returns false.
bool flush_output(std::string_view command);

// The current time in UTC, for example "2026-01-31T12:00:00Z".
std::string utc_now();

}  // namespace tutti::tool
