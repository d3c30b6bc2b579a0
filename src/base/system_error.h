// Describes errors of system calls for messages: the system's own text, and the remedy if there is one. May be called
// from any thread.
#pragma once

#include <string>
#include <system_error>

namespace tutti {

// Returns the system's text for the errno value `error`. If the process or the machine is out of descriptors or memory
// (is_shortage()), it adds the limit to raise, for example "Too many open files; raise the limit of open files
// (ulimit -n)".
std::string describe_errno(int error);

// Like describe_errno(), but for errors of pthread_create() and std::thread. With these functions EAGAIN means that a
// limit of processes or of memory is reached, so the text then names these limits.
std::string describe_thread_errno(int error);

// The message for an exception of start_thread(): "no thread can be started: REASON", and the limit to raise.
std::string describe_thread_start_error(const std::system_error& error);

// Whether the errno value `error` means that this process or its machine is out of descriptors or memory. The same
// call could succeed in another process at the same moment. So the error does not show that something is wrong with
// the file or the peer that the call used.
bool is_shortage(int error);

}  // namespace tutti
