// EngineHandle: streams use it to submit operations and to report losses. Any thread may call it.
#include "engine/engine.h"

namespace tutti {

std::shared_ptr<Operation> Operation::again() const {
  auto operation = std::make_shared<Operation>();
  operation->call = call;
  operation->plan = plan;
  operation->by_mailbox = by_mailbox;
  operation->direct = direct;
  operation->transfers = transfers;
  operation->own = own;
  operation->start_condition = start_condition;
  operation->follows = follows;
  operation->timeout_ns = timeout_ns;
  return operation;
}

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

void EngineHandle::close() {
  const std::scoped_lock lock(mutex_);
  engine_ = nullptr;
}

}  // namespace tutti
