// Descriptors that a forked child must not keep.
//
// A connection ends for its peer when the last copy of its descriptor is closed. If the process of a rank exits while
// a forked child still has a copy, its peers would not notice the exit. So the child replaces its copies immediately,
// in a handler of pthread_atfork(), by descriptors of /dev/null. The numbers remain in use, so that code of the child
// that still uses an old connection cannot touch a file that the child opens later. A program that the child starts
// by exec() inherits none of the descriptors, because all are close-on-exec.
//
// Two cases are not covered: a child that is created without fork() of the C library (by clone() or syscall()
// directly), and a descriptor that another thread creates at the moment of the fork. Thread-safe.
#pragma once

namespace tutti {

// From now on, children replace their copies of `fd`, which may be -1. Descriptors from 2^20 on are not registered,
// so children keep them.
void close_in_children(int fd);
// Ends the registration. Call it before `fd` is closed in this process.
void forget_in_children(int fd);

}  // namespace tutti
