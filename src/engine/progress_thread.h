// ProgressThread: the thread that drives an engine in the background while no other thread waits for an operation.
// The first operation that is submitted with Progress::kInBackground starts it. The engine's mutex guards the state
// of this class.
#pragma once

#include <mutex>
#include <thread>

#include "engine/engine_state.h"
#include "engine/progress_loop.h"
#include "tutti/result.h"

namespace tutti {

class ProgressThread {
 public:
  // All arguments must outlive this object. Call end() and join() before it is destroyed.
  ProgressThread(EngineState& state, ProgressLoop& loop) : state_(state), loop_(loop) {}

  // Starts the thread, if it does not run yet. Hold the engine's mutex. Errors: kSystem (the system cannot create a
  // thread).
  Status start();
  // Makes the thread drive until no operation is in progress. It gives up the role while other threads want to
  // drive. Hold the engine's mutex.
  void request();
  // Makes the thread end after its current run of the loop, even if operations are in progress. Hold the engine's
  // mutex.
  void end();
  bool ending() const { return ending_; }
  // Waits until the thread has ended. The caller must not hold the engine's mutex, because the thread needs it to
  // end.
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run();

  EngineState& state_;
  ProgressLoop& loop_;
  std::thread thread_;
  bool ending_ = false;
};

}  // namespace tutti
