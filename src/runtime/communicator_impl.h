// What stands behind the public Communicator, Work and Memory. Internal to src/runtime and its tests.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "executor/bind.h"
#include "runtime/engine.h"
#include "runtime/world.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class WorkImpl {
 public:
  WorkImpl(Engine& engine, std::shared_ptr<Operation> operation) : engine_(engine), operation_(std::move(operation)) {}
  // Both leave the engine alone once the operation is done, so that a Work may outlive its communicator, which ends
  // everything.
  Status wait() { return done() ? operation_->result : engine_.wait(*operation_); }
  bool test() { return done() || engine_.test(*operation_); }

 private:
  bool done() const { return operation_->done.load(std::memory_order_acquire); }
  Engine& engine_;
  std::shared_ptr<Operation> operation_;  // shared with the engine's queue
};

class MemoryImpl {
 public:
  MemoryImpl(std::unique_ptr<Window> window, std::size_t bytes) : window_(std::move(window)), bytes_(bytes) {}
  std::byte* data() const { return window_->data(); }
  std::size_t size() const { return bytes_; }

 private:
  std::unique_ptr<Window> window_;
  std::size_t bytes_;  // as asked for; the window may be longer
};

class CommunicatorImpl {
 public:
  CommunicatorImpl(std::uint32_t rank, std::uint32_t ranks, World world, std::chrono::milliseconds timeout);

  static std::unique_ptr<Communicator> wrap(std::unique_ptr<CommunicatorImpl> impl);

  std::uint32_t rank() const { return rank_; }
  std::uint32_t ranks() const { return ranks_; }
  Status all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                    const AllReduceOptions& options);
  Result<Work> all_reduce_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                const AllReduceOptions& options);
  Result<Memory> allocate(std::size_t bytes);
  Result<Memory> register_memory(void* data, std::size_t bytes);
  void abort() { engine_.abort(); }

 private:
  Result<std::shared_ptr<Operation>> submit(const void* input, void* output, std::size_t count, DataType type,
                                            ReduceOp op, const AllReduceOptions& options, Engine::Progress progress);
  Result<const BoundPlan*> plan_for(Algorithm algorithm);

  std::uint32_t rank_;
  std::uint32_t ranks_;
  World world_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // orders submissions; guards connections_ and plans_
  Connections connections_;
  std::array<std::unique_ptr<BoundPlan>, static_cast<std::size_t>(Algorithm::kUser) + 1> plans_;  // by Algorithm
  Engine engine_;  // last: ends before what it uses
};

// Longer timeouts are taken as this one.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24);

// Checks the arguments of one rank's call. Errors: kInvalidArgument.
Status check_arguments(const void* input, const void* output, std::size_t count, DataType type, ReduceOp op,
                       const AllReduceOptions& options);

// What kAuto stands for: a rule of thumb by bytes and ranks, the same on every rank.
Algorithm choose_algorithm(std::uint64_t bytes, std::uint32_t ranks);

}  // namespace tutti::detail
