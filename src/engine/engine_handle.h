// EngineHandle: access to an engine for objects that may exist longer than the engine. Such objects are, for example,
// callbacks of streams, which submit a call when the stream reaches it, and callbacks that a LaunchGroup calls when its
// calls on GPUs have failed. The handle has a mutex, which is locked before the engine's mutex. Any thread may use the
// handle, even one that must not call the CUDA driver, because the functions of the handle do not call it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "engine/operation.h"
#include "tutti/result.h"

namespace tutti {

class Engine;

class EngineHandle {
 public:
  explicit EngineHandle(Engine& engine) : engine_(&engine) {}
  // Same as Engine::submit() with Progress::kInBackground. Returns kAborted if the engine's destructor has begun.
  Status submit(const std::shared_ptr<Operation>& operation);
  void fail(const Error& error);  // same as Engine::fail(); no effect if the engine's destructor has begun
  // Same as Engine::broken(). Returns kAborted if the engine's destructor has begun.
  std::optional<Error> broken();
  void close();

 private:
  std::mutex mutex_;  // held while the engine is called, so that the engine is not destroyed meanwhile
  Engine* engine_;    // the engine; null after close(), which the engine's destructor calls
};

}  // namespace tutti
