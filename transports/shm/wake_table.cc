#include "transports/shm/wake_table.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/assert.h"
#include "base/system/system_calls.h"
#include "base/system_error.h"

namespace tutti {
namespace {

void set_event(int event) {
  const std::uint64_t one = 1;
  // Fails only if the counter is full. The descriptor is readable then, so the sleeper wakes as intended.
  [[maybe_unused]] const ssize_t written = write(event, &one, sizeof(one));
}

}  // namespace

void clear_event(int eventfd) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(eventfd, &count, sizeof(count));  // fails if the counter is already zero
}

WakeTable::~WakeTable() {
  for (const auto& [key, event] : events_) ::close(event);
}

Result<int> WakeTable::open(std::uint64_t key) {
  const int event = above_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event < 0) {
    return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1, "eventfd failed: " + describe_errno(errno)};
  }
  const std::scoped_lock lock(mutex_);
  const bool is_new = events_.emplace(key, event).second;
  TUTTI_ASSERT(is_new, "a communicator can have only one receiver of wake-ups");
  return event;
}

void WakeTable::close(std::uint64_t key) {
  const std::scoped_lock lock(mutex_);
  const auto found = events_.find(key);
  if (found == events_.end()) return;
  ::close(found->second);
  events_.erase(found);
}

void WakeTable::signal(std::uint64_t key) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = events_.find(key); found != events_.end()) set_event(found->second);
}

void WakeTable::signal_all() {
  const std::scoped_lock lock(mutex_);
  for (const auto& [key, event] : events_) set_event(event);
}

}  // namespace tutti
