// Descriptors that a forked child must not keep.
//
// A connection ends for its peer when the last copy of its descriptor is closed. If the process of a rank exits while
// a forked child still has a copy, its peers would not notice the exit. So the child replaces its copies by
// descriptors of /dev/null as soon as it is forked, in a handler of pthread_atfork(). The descriptor numbers remain
// in use in the child, so that code of the child that still uses an old connection cannot touch a file that the child
// opens later. A program that the child starts by exec() inherits none of the descriptors, because all are
// close-on-exec.
//
// Two cases are not covered: a child that is created without fork() of the C library (by clone() or syscall()
// directly), and a descriptor that another thread creates at the moment of the fork. Thread-safe.
#pragma once

namespace tutti {

// From now on, every child replaces its copy of `fd` when it is forked. Has no effect if `fd` is -1, or at least
// 2^20: the table has no place for such numbers, so children keep those descriptors.
void close_in_children(int fd);
// Ends the registration of `fd`. Call it before `fd` is closed in this process, because the number may then be given
// to another file.
void forget_in_children(int fd);

}  // namespace tutti
