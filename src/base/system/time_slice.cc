#include "base/system/time_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tutti {
namespace {

// Linux's struct sched_attr in its first version, which the C libraries of older systems do not declare. The kernel
// accepts this size, and then leaves later members as they are.
struct SchedulingAttributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::int64_t runtime_ns;  // the time slice of a thread of an ordinary policy
  std::uint64_t deadline_ns;
  std::uint64_t period_ns;
};
static_assert(sizeof(SchedulingAttributes) == 48);

constexpr std::uint64_t kResetOnFork = 1;  // SCHED_FLAG_RESET_ON_FORK

thread_local std::int64_t former_slice_ns = 0;  // this thread's slice before it was shortened; 0 if it was not
thread_local std::uint64_t former_flags = 0;    // the flags that the thread had then

// Reads the attributes of the calling thread. Returns whether it has a time slice that can be set.
bool read_attributes(SchedulingAttributes& attributes) {
  attributes = {};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return false;
  const bool ordinary = attributes.policy == SCHED_OTHER || attributes.policy == SCHED_BATCH;
  return ordinary && attributes.runtime_ns > 0;  // 0: this kernel has no slices of single threads
}

bool set_slice(SchedulingAttributes attributes, std::int64_t slice_ns, std::uint64_t flags) {
  attributes.size = sizeof(attributes);
  attributes.flags = flags;
  attributes.runtime_ns = slice_ns;
  return syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
}

}  // namespace

std::int64_t usual_time_slice_ns() {
  SchedulingAttributes attributes;
  if (!read_attributes(attributes)) return 0;
  return attributes.runtime_ns == kShortestTimeSliceNs && former_slice_ns > 0 ? former_slice_ns : attributes.runtime_ns;
}

void shorten_time_slice() {
  SchedulingAttributes attributes;
  // Read anew each time, because a process that fork() made of this thread has the variables of this thread, but not
  // its slice.
  if (!read_attributes(attributes) || attributes.runtime_ns == kShortestTimeSliceNs || attributes.nice < 0) return;
  if (!set_slice(attributes, kShortestTimeSliceNs, attributes.flags | kResetOnFork)) return;
  former_slice_ns = attributes.runtime_ns;
  former_flags = attributes.flags;
}

void restore_time_slice() {
  if (former_slice_ns == 0) return;
  SchedulingAttributes attributes;
  if (read_attributes(attributes) && attributes.runtime_ns == kShortestTimeSliceNs &&
      !set_slice(attributes, former_slice_ns, former_flags)) {
    set_slice(attributes, former_slice_ns, attributes.flags);  // it is not permitted to take the flag back
  }
  former_slice_ns = 0;
}

}  // namespace tutti
