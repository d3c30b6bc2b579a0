// A program that links failing_calls.cc has its own copies of some functions of the C library, which the library under
// test then calls, and, if the program is linked with ENABLE_EXPORTS, the C++ library, too. Each forwards to the real
// function unless its turn to fail has come.
//
// A program with a sanitizer has no such copies, because the sanitizer replaces the same functions: nothing fails
// there.
#pragma once

#include <cstdint>

namespace tutti::test::failing_calls {

enum class Fault : std::uint8_t {
  kMapping,         // mmap(): ENOMEM
  kDescriptor,      // every function that makes a descriptor, socket() and accept4() among them: EMFILE
  kDescriptors,     // the same, and all such calls after that one fail, too
  kMessage,         // recvmsg() of a message that has come: ENOMEM
  kLostDescriptor,  // recvmsg() of such a message: what it brings beside its bytes is lost (MSG_CTRUNC)
  kLibrary,         // dlopen()
  kThread,          // pthread_create(): EAGAIN
  kFileSpace,       // posix_fallocate(), ftruncate(): ENOSPC
};

// The n-th call from now on that `fault` concerns fails, whichever thread of this process makes it. 0: none fails.
void fail_nth(Fault fault, std::int64_t n);
// How many such calls there were since fail_nth() was last called with n > 0.
std::int64_t counted();

// Every thread that is started from now on calls `hook` first. nullptr: none does.
void call_in_new_threads(void (*hook)());

}  // namespace tutti::test::failing_calls
