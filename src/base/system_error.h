// Errors of system calls in words, for messages: what the system says, and what the user can do about it. Any thread.
#pragma once

#include <string>
#include <system_error>

namespace tutti {

// The system's text for `error` (an errno), and, if it tells of a limit, which one to raise: "Too many open files;
// raise the limit of open files (ulimit -n)".
std::string words_of_errno(int error);

// The same for pthread_create() and what stands upon it, where EAGAIN tells of a limit, too.
std::string words_of_thread_errno(int error);

// For the exception of start_thread(): "no thread can be started: REASON", with what to raise.
std::string words_of_unstarted_thread(const std::system_error& error);

// Whether this process or its machine is short of something: descriptors or memory. The same call may go well in
// another process at the same moment, so that nothing follows from the failure about the file or the peer that it was
// about.
bool is_shortage(int error);

}  // namespace tutti
