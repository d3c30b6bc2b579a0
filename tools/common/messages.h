// The messages for errors that several commands can have, so that the same error has the same text and the same exit
// status in these commands. All functions may be called from any thread.
//
//  error                           text                                                             exit status
//  an unknown word                 --op: "smu" is not one of sum, prod, max; did you mean sum?       2
//  out of range, or not a number   --ranks: "0" is not a number from 1 to 4096                       2
//  an invalid size                 --bytes: "1X" is not a size; write bytes like 8, 4K, ...          2
//  a file that cannot be used      cannot open FILE: No such file or directory                       1
//                                  cannot read FILE: Is a directory
//  a file with invalid content     FILE and the position, then the error and the remedy              1
//  output that cannot be written   cannot write FILE: No space left on device                        1
//  an invalid TUTTI_* variable     configuration: TUTTI_SLOTS="x" is not valid: give ...             2
//
// Errors of the command line end with a second line that refers to the --help of the command.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/result.h"

namespace tutti::tool {

// not_one_of(), not_a_size() and not_a_number() return the part of a message that follows the name of an option and a
// colon, for example "--op: ". `word` is the value that the user gave; `known` are the permitted values.
std::string not_one_of(std::string_view word, std::span<const std::string_view> known);
std::string not_a_size(std::string_view word);
std::string not_a_number(std::string_view word);
// The permitted range is `least` to `most`. If `most` is empty, there is no upper limit.
std::string not_a_number(std::string_view word, double least, std::optional<double> most);

// Returns an error of the command line (kInvalidArgument) with the message "NAME: TEXT". `name` is that of an option or
// argument, for example "--op", and `text` usually comes from one of the functions above.
Error wrong_option(std::string_view name, std::string_view text);

// Errors of files (kSystem). `error_number` is the value of errno.
Error cannot_open(std::string_view path, int error_number);
Error cannot_read(std::string_view path, int error_number);
Error cannot_write(std::string_view path, int error_number);
// The error for a file that could be read but has invalid content. `message` must contain the file's name. The code is
// kConfig and not kInvalidArgument, because report() would take kInvalidArgument as an error of the command line.
Error wrong_content(std::string message);

// If a TUTTI_* variable of this process is unknown or has an invalid value, prints an error message of `command` to
// stderr and returns the exit status kExitUsage. Otherwise returns nothing. `tutti perf` and `tutti train` call this
// before they start ranks, because otherwise each rank would print the error. main.cc calls it for the other commands
// except `run`, because usually no communicator in their process would report the error.
std::optional<int> report_environment(std::string_view command);

// report_usage() and report() print to stderr why `command` fails, and return its exit status. report_usage() is for
// errors of the command line: it also refers to --help, and returns kExitUsage.
int report_usage(std::string_view command, std::string_view message);
// Passes errors with the codes kInvalidArgument and kUnsupported to report_usage(). For all others, prints only the
// message and returns kExitFailure.
int report(std::string_view command, const Error& error);

}  // namespace tutti::tool
