// Descriptors that a forked child must not keep.
//
// A connection ends for its peer when the last copy of its descriptor is closed. If the process of a rank exits while
// a forked child still has a copy, the peers of that rank would not see the end of the connection. So the child
// replaces its copies by descriptors of /dev/null as soon as it is forked, in a handler of pthread_atfork(). (If it
// cannot open /dev/null, it closes its copies.) The descriptor numbers remain in use in the child, so that code of the
// child that still uses an old connection cannot touch a file that the child opens later. A program that the child
// starts by exec() inherits none of these descriptors, because they are close-on-exec.
//
// A child keeps its copies if it is created without fork() of the C library (for example by vfork() or clone()), or if
// pthread_atfork() has failed. It also keeps its copy of a descriptor that another thread creates at the moment of the
// fork. Both functions are thread-safe.
#pragma once

namespace tutti {

// From now on, with the exceptions above, a child replaces its copy of `fd` when it is forked. Has no effect if `fd` is
// negative, or not below kDescriptors (inherited.cc): the table has no place for such numbers, so children keep those
// descriptors.
void close_in_children(int fd);
// Ends the registration of `fd`. Call it before `fd` is closed in this process, because the number may then be given
// to another file.
void forget_in_children(int fd);

}  // namespace tutti
