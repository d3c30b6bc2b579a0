// WorkImpl: the implementation of the public class Work: one or several submitted operations that a caller waits for
// together. It owns no threads or locks. One thread at a time may use it, as with Work. Internal to src/communicator,
// except for has_ended().
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class WorkImpl {
 public:
  struct Part {
    Engine* engine;
    std::shared_ptr<Operation> operation;  // shared with the engine's queue
  };
  explicit WorkImpl(std::vector<Part> parts) : parts_(std::move(parts)) {}
  // Call this before the first wait(), test() or has_ended().
  void set_parts(std::vector<Part> parts) noexcept { parts_ = std::move(parts); }
  // Appends the operation and, for a long call that was cut, the operations of its other segments.
  static void add(Engine& engine, const std::shared_ptr<Operation>& operation, std::vector<Part>& parts);
  // If an operation is done, wait() and test() do not use its engine. A Work may therefore outlive its
  // communicators, because destroying a communicator completes all of its operations.
  Status wait();
  bool test();
  // As test(), but never blocks, because the calling thread does no part of the communication. So the operations must
  // have been submitted with Engine::Progress::kInBackground, or another thread must wait for them.
  bool has_ended() const;

 private:
  static bool done(const Part& part) { return part.operation->done.load(std::memory_order_acquire); }
  std::vector<Part> parts_;
};

// WorkImpl::has_ended() for a Work that Communicator::start() or Group::start() returned, for front ends of the library
// that must not block (src/nccl).
bool has_ended(const Work& work);

}  // namespace tutti::detail
