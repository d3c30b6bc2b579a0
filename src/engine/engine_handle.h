// EngineHandle: access to an engine for objects that may exist longer than the engine. These are streams that submit a
// call when they reach it, and threads that detect the loss of a device. It has a lock, which comes before the engine's
// mutex. Any thread may use it, even one that must not call the CUDA driver.
#pragma once

#include <memory>
#include <mutex>

#include "engine/operation.h"
#include "tutti/result.h"

namespace tutti {

class Engine;

class EngineHandle {
 public:
  explicit EngineHandle(Engine& engine) : engine_(&engine) {}
  // Same as Engine::submit() with Progress::kInBackground. kAborted: the engine has been destroyed.
  Status submit(const std::shared_ptr<Operation>& operation);
  void fail(const Error& error);  // same as Engine::fail(); no effect if the engine has been destroyed
  void close();

 private:
  std::mutex mutex_;  // held during calls of the engine, which are short
  Engine* engine_;    // null if closed
};

}  // namespace tutti
