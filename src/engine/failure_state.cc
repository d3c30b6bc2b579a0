#include "engine/failure_state.h"

#include "base/exceptions.h"

namespace tutti {

void FailureState::set_broken(const Error& error) noexcept {
  if (!broken_) broken_ = copy_of(error);
}

void FailureState::abort(std::mutex& mutex) noexcept {
  aborted_.store(true, std::memory_order_seq_cst);
  if (recorder_ != nullptr) runs_through([&] { recorder_->aborted(); });
  announce_abort();
  const std::scoped_lock lock(mutex);
  if (broken_) return;
  // The text "aborted" is short enough for a std::string without an allocation. If there is memory, the last statement
  // of this function replaces the text.
  broken_ = Error{ErrorCode::kAborted, ErrorScope::kCommunicator, -1, "aborted"};
  runs_through([&] { broken_->message = "abort() was called on this communicator"; });
}

void FailureState::abort_remaining() noexcept {
  aborted_.store(true, std::memory_order_relaxed);
  announce_abort();
}

void FailureState::announce_abort() noexcept {
  const bool announced = runs_through([&] { transport_.announce_abort(); });
  abort_unannounced_.store(!announced, std::memory_order_relaxed);
  runs_through([&] { transport_.doorbell().ring(); });
}

}  // namespace tutti
