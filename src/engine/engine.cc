#include "engine/engine.h"

#include <fmt/format.h>

#include "base/assert.h"

namespace tutti {

Engine::Engine(std::uint32_t rank, std::uint32_t ranks, Environment& environment, Connections& connections,
               Segmentation segmentation)
    : context_{.rank = rank,
               .ranks = ranks,
               .environment = environment,
               .transport = *environment.transport,
               .recorder = environment.recorder.get(),
               .connections = connections,
               .segmentation = segmentation},
      handle_(std::make_shared<EngineHandle>(*this)),
      state_(context_),
      loop_(context_, state_),
      short_calls_(context_, state_, loop_),
      probe_(context_, state_),
      progress_thread_(state_, loop_) {}

Engine::~Engine() {
  handle_->close();
  {
    const std::scoped_lock lock(state_.mutex);
    state_.failure.announce_again();
    if (!state_.idle()) state_.failure.abort_remaining();
    progress_thread_.end();
  }
  progress_thread_.join();
  std::unique_lock lock(state_.mutex);
  state_.role.wait_until_unused(lock);
  while (!state_.idle()) loop_.run(lock, ProgressLoop::Until::kDone);
  loop_.record_retransmissions();
}

Status Engine::submit(const std::shared_ptr<Operation>& operation, Progress progress) {
  const std::scoped_lock lock(state_.mutex);
  TUTTI_ASSERT(!progress_thread_.ending());
  state_.failure.announce_again();
  if (state_.failure.broken()) return *state_.failure.broken();
  if (state_.queue.capacity() == 0) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 fmt::format("{} operations are under way already: wait for some of them first",
                             OperationQueue::kMaxOperations)};
  }
  if (progress == Progress::kInBackground) TUTTI_TRY(progress_thread_.start());
  state_.queue.add(operation);
  if (state_.role.taken()) state_.role.wake_driver();  // the driver may sleep, and must list the operations anew
  if (progress == Progress::kInBackground) progress_thread_.request();
  return {};
}

Status Engine::wait(Operation& operation) {
  if (!operation.done.load(std::memory_order_acquire)) {
    std::unique_lock lock(state_.mutex);
    loop_.drive(lock, operation);
  }
  return operation.result;
}

bool Engine::test(Operation& operation) {
  if (operation.done.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(state_.mutex, std::try_to_lock);
  if (!lock.owns_lock() || state_.role.taken() || state_.idle()) return operation.done.load(std::memory_order_acquire);
  loop_.run(lock, ProgressLoop::Until::kOnePoll);
  return operation.done.load(std::memory_order_acquire);
}

void Engine::fail(const Error& error) noexcept {
  const std::scoped_lock lock(state_.mutex);
  if (state_.failure.broken()) return;
  state_.failure.set_broken(error);
  state_.failure.announce_abort();
  state_.queue.note_change();  // makes the driver end its run, so that the next run sees the error
}

void Engine::announce_failure() noexcept {
  const std::scoped_lock lock(state_.mutex);
  if (!has_left_) state_.failure.announce_abort();
}

void Engine::end_all() noexcept {
  std::unique_lock lock(state_.mutex);
  while (!state_.idle()) {
    if (state_.role.taken()) {
      state_.role.wait_for_role(lock, [this] { return state_.idle() || !state_.role.taken(); });
    } else {
      loop_.run(lock, ProgressLoop::Until::kDone);
    }
  }
  state_.role.notify_all();  // wakes threads that wait because DriverRole::wanted() was true
}

Status Engine::finalize() {
  while (true) {
    std::shared_ptr<Operation> last;  // a reference, so that the operation stays alive during wait()
    {
      std::unique_lock lock(state_.mutex);
      if (state_.role.unqueued()) {
        state_.role.wait_for_end_of_unqueued(lock);
        continue;
      }
      if (state_.idle()) {
        if (state_.failure.broken()) return *state_.failure.broken();
        state_.failure.set_broken({ErrorCode::kInvalidArgument, ErrorScope::kCommunicator, -1,
                                   "finalize() was called on this communicator: it takes no more calls"});
        // Only the driver may call these two functions. The engine is idle, so no thread drives, and the lock prevents
        // others from starting to drive.
        loop_.record_retransmissions();
        context_.transport.announce_leave();
        has_left_ = true;
        return {};
      }
      last = state_.queue.last();
    }
    static_cast<void>(wait(*last));
  }
}

std::size_t Engine::capacity() {
  const std::scoped_lock lock(state_.mutex);
  return state_.queue.capacity();
}

std::optional<Error> Engine::broken() {
  const std::scoped_lock lock(state_.mutex);
  return state_.failure.broken();
}

}  // namespace tutti
