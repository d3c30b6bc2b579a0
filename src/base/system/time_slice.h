// The time slice of a thread: how long Linux lets it compute before another thread that waits for the same core has its
// turn. Of the threads that wait for a core, the scheduler (EEVDF) prefers the one with the shorter slice. So a thread
// that often sleeps for a short time runs sooner after it is woken if it asks for a short slice. It gets no more
// processor time than before.
//
// Slices can be read and set from Linux 6.12 on, and only for threads of the ordinary scheduling policies (SCHED_OTHER
// and SCHED_BATCH). Elsewhere these functions have no effect. Each of them affects only the calling thread.
#pragma once

#include <cstdint>

namespace tutti {

constexpr std::int64_t kShortestTimeSliceNs = 100'000;  // Linux permits no shorter one

// The time slice that the calling thread has without shorten_time_slice(), in nanoseconds; 0 if it is unknown.
std::int64_t usual_time_slice_ns();
// Asks for the shortest time slice. Does nothing if the thread has it already, or if the thread has a negative nice
// value. Also sets the flag SCHED_FLAG_RESET_ON_FORK, so that threads and processes which the thread starts do not
// inherit the slice. For the threads that this function changes, the flag has no other effect, except that without
// CAP_SYS_NICE it cannot be removed: restore_time_slice() then leaves it set.
void shorten_time_slice();
// Ends the effect of shorten_time_slice(), unless somebody else has changed the slice in the meantime.
void restore_time_slice();

}  // namespace tutti
