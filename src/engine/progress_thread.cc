#include "engine/progress_thread.h"

#include <system_error>

#include "base/system_error.h"
#include "base/thread.h"

namespace tutti {

Status ProgressThread::start() {
  if (thread_.joinable()) return {};
  try {
    thread_ = start_thread([this] { run(); });
    return {};
  } catch (const std::system_error& error) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, describe_thread_start_error(error)};
  }
}

void ProgressThread::request() {
  state_.role.set_background_wanted(true);
  state_.role.notify_all();
}

void ProgressThread::end() {
  ending_ = true;
  state_.role.notify_all();
}

void ProgressThread::run() {
  std::unique_lock lock(state_.mutex);
  while (!ending_) {
    if (state_.idle()) state_.role.set_background_wanted(false);
    if (state_.role.taken() || state_.role.wanted() || !state_.role.background_wanted()) {
      state_.role.wait_for_change(lock);
    } else {
      loop_.run(lock, ProgressLoop::Until::kWanted);
    }
  }
}

}  // namespace tutti
