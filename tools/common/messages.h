// The messages for faults that several commands can meet. A fault has the same words and the same exit status in every
// command. All functions may be called from any thread.
//
//   fault                           words                                                             exit status
//   an unknown word                 --op: "smu" is not one of sum, prod, max; did you mean sum?       2
//   a number out of range, or none  --ranks: "0" is not a number from 1 to 4096                       2
//   no size                         --bytes: "1X" is not a size; write bytes like 8, 4K, ...          2
//   a file that cannot be used      cannot open FILE: No such file or directory                       1
//                                   cannot read FILE: Is a directory
//   a file with wrong content       FILE and the place, then what is wrong and what to do             1
//   output that cannot be written   cannot write FILE: No space left on device                        1
//   a wrong TUTTI_* variable        configuration: TUTTI_SLOTS="x" is not valid: give ...              2
//
// Errors of the command line end with a second line that names the command's --help.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/result.h"

namespace tutti::tool {

// The texts that follow the name of an option, or of a part of the command line, and a colon.
std::string not_one_of(std::string_view word, std::span<const std::string_view> known);
std::string not_a_size(std::string_view word);
std::string not_a_number(std::string_view word);
// Without `most` there is no upper bound.
std::string not_a_number(std::string_view word, double least, std::optional<double> most);

// "--op" and one of the texts above, as an error of the command line (kInvalidArgument).
Error wrong_option(std::string_view name, std::string_view text);

// For files; `error_number` is errno's value.
Error cannot_open(std::string_view path, int error_number);
Error cannot_read(std::string_view path, int error_number);
Error cannot_write(std::string_view path, int error_number);
// The file could be read, and its content is wrong. `message` names the file. The error is no kInvalidArgument, because
// the command line is right.
Error wrong_content(std::string message);

// If a TUTTI_* variable of this process is unknown or has an invalid value, prints which one to stderr and returns the
// exit status of `command`. The commands that start ranks call it before they do, because each rank would report it.
std::optional<int> report_environment(std::string_view command);

// Print to stderr why `command` fails, and return its exit status.
int report_usage(std::string_view command, std::string_view message);
// kInvalidArgument and kUnsupported mean that the command line asks for something that does not exist: report_usage().
int report(std::string_view command, const Error& error);

}  // namespace tutti::tool
