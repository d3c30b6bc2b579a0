#include "communicator/work.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace detail {
namespace {

// If WorkImpl::wait() polls (several operations, or one with a start condition), it yields the core after each of the
// first polls, this many times. After each later poll it sleeps.
constexpr std::uint32_t kRoundsBeforeSleep = 200;
constexpr std::chrono::microseconds kSleep{100};

}  // namespace

void WorkImpl::add(Engine& engine, const std::shared_ptr<Operation>& operation, std::vector<Part>& parts) {
  parts.push_back({.engine = &engine, .operation = operation});
  for (const auto& segment : operation->rest) parts.push_back({.engine = &engine, .operation = segment});
}

Status WorkImpl::wait() {
  const bool one = parts_.size() == 1 && parts_[0].operation->start_condition == nullptr;
  if (one && !done(parts_[0])) return parts_[0].engine->wait(*parts_[0].operation);
  for (std::uint32_t round = 0; !test(); ++round) {
    if (round < kRoundsBeforeSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  for (const Part& part : parts_) {
    TUTTI_TRY(part.operation->result);
    if (part.operation->start_condition != nullptr) TUTTI_TRY(part.operation->start_condition->outcome());
  }
  return {};
}

bool WorkImpl::test() {
  bool all = true;
  for (const Part& part : parts_) {
    const bool ended = done(part) || part.engine->test(*part.operation);
    const bool finished = part.operation->start_condition == nullptr ||
                          // finished() also makes progress, so it is called for every part, even after one that has
                          // not ended.
                          part.operation->start_condition->finished();
    all &= ended && finished;
  }
  return all;
}

bool WorkImpl::has_ended() const {
  bool all = true;
  for (const Part& part : parts_) {
    // Called for every part, as in test().
    const bool finished = part.operation->start_condition == nullptr || part.operation->start_condition->finished();
    all &= done(part) && finished;
  }
  return all;
}

}  // namespace detail

Work::Work() = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;
Work::Work(std::shared_ptr<detail::WorkImpl> impl) : impl_(std::move(impl)) {}
Status Work::wait() {
  return guarded("Work::wait", [&] { return impl_ == nullptr ? Status() : impl_->wait(); });
}
bool Work::test() { return impl_ == nullptr || impl_->test(); }

}  // namespace tutti
