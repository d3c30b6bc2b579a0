// ProgressThread: the thread that drives an engine in the background, if no other thread waits for an operation. It is
// started by the first operation that is submitted in the background. It owns the thread; its state is guarded by the
// engine's mutex.
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

  // Starts the thread, if it does not run yet. Hold the engine's mutex. Errors: kSystem.
  Status start();
  // Makes the thread drive until no operation is in progress. Hold the engine's mutex.
  void request();
  // Makes the thread end soon. Hold the engine's mutex.
  void end();
  bool ending() const { return ending_; }
  // Waits until the thread has ended. The caller does not hold the engine's mutex.
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
