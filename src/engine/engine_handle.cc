#include "engine/engine_handle.h"

#include "engine/engine.h"

namespace tutti {

Status EngineHandle::submit(const std::shared_ptr<Operation>& operation) {
  const std::scoped_lock lock(mutex_);
  if (engine_ != nullptr) return engine_->submit(operation, Engine::Progress::kInBackground);
  return Error{ErrorCode::kAborted, ErrorScope::kCommunicator, -1,
               describe(operation->call.tag) + ": the communicator ended before the stream came to this call"};
}

void EngineHandle::fail(const Error& error) {
  const std::scoped_lock lock(mutex_);
  if (engine_ != nullptr) engine_->fail(error);
}

std::optional<Error> EngineHandle::broken() {
  const std::scoped_lock lock(mutex_);
  if (engine_ != nullptr) return engine_->broken();
  return Error{ErrorCode::kAborted, ErrorScope::kCommunicator, -1, "the communicator has ended"};
}

void EngineHandle::close() {
  const std::scoped_lock lock(mutex_);
  engine_ = nullptr;
}

}  // namespace tutti
