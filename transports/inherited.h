// Descriptors that a forked child must not keep. A connection ends for its peer when the last copy of its descriptor is
// closed. If a rank's process ends while a child that it has forked still has a copy, its peers would therefore not
// learn of the end. So the child replaces its copies at once, in a handler of pthread_atfork(), by descriptors of
// /dev/null: the numbers stay taken, so that the child's copy of a connection cannot touch a file that the child opens
// later. A program that the child starts by exec() has none of them anyway, since all are close-on-exec.
//
// Not covered: a child that is made without fork() of the C library (a bare clone() or syscall()), and a descriptor
// that another thread makes at the moment of the fork. Thread-safe.
#pragma once

namespace tutti {

// From now on; `fd` may be -1. Descriptors from 2^20 on are kept by children.
void close_in_children(int fd);
// Before `fd` is closed here.
void forget_in_children(int fd);

}  // namespace tutti
