#include "transports/shm/pokes.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/assert.h"
#include "base/system_error.h"
#include "transports/shm/mapping.h"

namespace tutti {
namespace {

void set_event(int event) {
  const std::uint64_t one = 1;
  // Fails only when the counter is full: then it is readable, which is all that is wanted.
  [[maybe_unused]] const ssize_t written = write(event, &one, sizeof(one));
}

}  // namespace

void clear_event(int eventfd) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(eventfd, &count, sizeof(count));  // fails when it was clear
}

PokeTable::~PokeTable() {
  for (const auto& [key, event] : events_) ::close(event);
}

Result<int> PokeTable::open(std::uint64_t key) {
  const int event = above_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event < 0) {
    return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1, "eventfd failed: " + words_of_errno(errno)};
  }
  const std::scoped_lock lock(mutex_);
  const bool is_new = events_.emplace(key, event).second;
  TUTTI_ASSERT(is_new, "a communicator receives its pokes in one place");
  return event;
}

void PokeTable::close(std::uint64_t key) {
  const std::scoped_lock lock(mutex_);
  const auto found = events_.find(key);
  if (found == events_.end()) return;
  ::close(found->second);
  events_.erase(found);
}

void PokeTable::signal(std::uint64_t key) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = events_.find(key); found != events_.end()) set_event(found->second);
}

void PokeTable::signal_all() {
  const std::scoped_lock lock(mutex_);
  for (const auto& [key, event] : events_) set_event(event);
}

}  // namespace tutti
