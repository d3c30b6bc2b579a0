// A program that links failing_allocations.cc has an `operator new` that can be made to throw std::bad_alloc.
#pragma once

#include <cstdint>

namespace tutti::test::failing_allocations {

// Counts the allocations of the calling thread from now on, or those of all threads, and lets the n-th of them fail.
// 0: counts no longer, and nothing fails.
void fail_after(std::int64_t n, bool every_thread);
// Whether all allocations after the n-th fail, too.
void set_lasting(bool lasting);
// Adds to a number of the calling thread. While it is not 0, the thread's allocations do not count and do not fail: it
// runs code of a double, whose failures are not the subject.
void spare_this_thread(int by);
// The allocations that were counted so far.
std::int64_t counted();
// Sets that number. For a trial that ran in a child process, which has counted for this one.
void set_counted(std::int64_t number);

}  // namespace tutti::test::failing_allocations
