// A program that links failing_calls.cc defines some functions of the C library itself. The library under test then
// calls these functions, and so does the C++ library if the program is linked with ENABLE_EXPORTS. Each one calls the
// real function, unless fail_nth() has selected this call to fail.
//
// Programs with a sanitizer do not have these functions, because the sanitizer replaces the same ones. In them no
// call fails. All functions may be called by any thread.
#pragma once

#include <cstdint>

namespace tutti::test::failing_calls {

// The calls that can fail, and their errors.
enum class Fault : std::uint8_t {
  kMapping,         // mmap(): ENOMEM
  kDescriptor,      // all functions that create a descriptor, such as socket() and accept4(): EMFILE
  kDescriptors,     // the same, and all later calls fail, too
  kMessage,         // recvmsg() of a message that has arrived: ENOMEM
  kLostDescriptor,  // recvmsg() of such a message: its control data is lost, as with MSG_CTRUNC
  kLibrary,         // dlopen()
  kThread,          // pthread_create(): EAGAIN
  kFileSpace,       // posix_fallocate(), ftruncate(): ENOSPC
};

// Makes the n-th call from now on that belongs to `fault` fail, in any thread of this process. 0: no call fails.
void fail_nth(Fault fault, std::int64_t n);
// The number of such calls since fail_nth() was last called with n > 0.
std::int64_t counted();

// Makes every thread that is started from now on call `hook` first. nullptr: no hook.
void call_in_new_threads(void (*hook)());

}  // namespace tutti::test::failing_calls
