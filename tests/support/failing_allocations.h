// A program that links failing_allocations.cc has an `operator new` that can be made to throw std::bad_alloc. All
// functions may be called by any thread.
#pragma once

#include <cstdint>

namespace tutti::test::failing_allocations {

// Starts to count the allocations of the calling thread, or of all threads, and makes the n-th of them fail. With n =
// 0 it stops to count, and no allocation fails.
void fail_after(std::int64_t n, bool every_thread);
// Determines whether all allocations after the n-th one fail, too.
void set_lasting(bool lasting);
// Adds `by` to a number of the calling thread. While the number is not 0, the thread's allocations do not count and
// do not fail, because the thread executes code of a fake driver, whose failures are not tested.
void exempt_this_thread(int by);
// The number of allocations counted since the start of the process.
std::int64_t counted();
// Sets this number. For a trial that ran in a child process, which has counted instead of this process.
void set_counted(std::int64_t number);

}  // namespace tutti::test::failing_allocations
