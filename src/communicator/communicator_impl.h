// CommunicatorImpl, WorkImpl and MemoryImpl: the implementations of the public classes Communicator, Work and
// Memory. Internal to src/communicator and its tests.
//
// Threads: every public function may be called from any thread. submission_mutex() orders the submissions of calls;
// the engine has locks of its own.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "device/native/device_executor.h"
#include "device/native/device_windows.h"
#include "device/staged/host_staging.h"
#include "engine/arguments.h"
#include "engine/engine.h"
#include "executor/bind.h"
#include "job/environment.h"
#include "job/job_context.h"
#include "selection/algorithm_selector.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class ConsensusParticipant;
struct ConsensusDecision;
struct ConsensusVote;
class SurvivorRendezvous;

// One or several operations that a caller waits for together.
class WorkImpl {
 public:
  struct Part {
    Engine* engine;
    std::shared_ptr<Operation> operation;  // shared with the engine's queue
  };
  explicit WorkImpl(std::vector<Part> parts) : parts_(std::move(parts)) {}
  // Call this before the first wait() or test().
  void set_parts(std::vector<Part> parts) noexcept { parts_ = std::move(parts); }
  // Appends the operation and, for a long call that was cut, the operations of its other segments.
  static void add(Engine& engine, const std::shared_ptr<Operation>& operation, std::vector<Part>& parts);
  // If an operation is done, wait() and test() do not use its engine. A Work may therefore outlive its
  // communicators, because destroying a communicator completes all of its operations.
  Status wait();
  bool test();

 private:
  static bool done(const Part& part) { return part.operation->done.load(std::memory_order_acquire); }
  std::vector<Part> parts_;
};

class MemoryImpl {
 public:
  MemoryImpl(std::unique_ptr<Window> window, std::size_t bytes)
      : data_(window->data()), bytes_(bytes), window_(std::move(window)) {}
  MemoryImpl(std::unique_ptr<DeviceWindow> window, void* data, std::size_t bytes)
      : data_(static_cast<std::byte*>(data)), bytes_(bytes), device_window_(std::move(window)) {}
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;  // the size that the caller asked for; the window may be longer
  std::unique_ptr<Window> window_;
  std::unique_ptr<DeviceWindow> device_window_;  // set instead of window_ if the memory is device memory
};

class CommunicatorImpl {
 public:
  // `members`: element i is the job rank of this communicator's rank i. `id`: the number that identifies the
  // communicator in its transport. Without a job_context (in a simulated environment) the communicator can be
  // neither split nor shrunk.
  CommunicatorImpl(std::uint32_t rank, std::uint32_t ranks, Environment environment, std::chrono::milliseconds timeout,
                   std::shared_ptr<JobContext> job_context = nullptr, std::vector<std::uint32_t> members = {},
                   std::unique_ptr<DeviceResources> devices = nullptr, std::uint64_t id = 0);
  ~CommunicatorImpl();

  static std::unique_ptr<Communicator> wrap(std::unique_ptr<CommunicatorImpl> impl);

  // Runs the body of a public function. An exception, for example std::bad_alloc, becomes an error. It also ends
  // this communicator and everything that is in progress on it, because the other ranks of the call wait for this
  // one.
  template <class Body>
  auto guarded(Body&& body) noexcept -> decltype(body()) {
    try {
      return std::forward<Body>(body)();
    } catch (...) {
      return end_by_exception();
    }
  }

  std::uint32_t rank() const { return rank_; }
  bool own_process() const { return getpid() == process_; }
  std::uint32_t ranks() const { return ranks_; }
  std::uint32_t nodes() const {  // machines are numbered 0, 1, ...
    return environment_.nodes.empty() ? 1 : *std::max_element(environment_.nodes.begin(), environment_.nodes.end()) + 1;
  }
  bool runs_on_devices() const { return device_executor_ != nullptr; }
  std::uint64_t calls_on_device() const { return calls_on_device_.load(std::memory_order_relaxed); }
  static const CommunicatorImpl& of(const Communicator& communicator) { return *communicator.impl_; }
  static CommunicatorImpl& of(Communicator& communicator) { return *communicator.impl_; }
  std::string transport_name() const { return std::string(environment_.transport->name()); }
  Status run(const CollectiveCall& call, const CallOptions& options);
  // run() without the vote of the uniform mode (uniform.cc), in which the ranks confirm how the call ended.
  Status run_plain(const CollectiveCall& call, const CallOptions& options);
  Result<Work> start(const CollectiveCall& call, const CallOptions& options);
  Status transfer(Direction direction, const void* data, std::size_t count, DataType type, std::int32_t peer,
                  const CallOptions& options);
  Result<Work> start_transfer(Direction direction, const void* data, std::size_t count, DataType type,
                              std::int32_t peer, const CallOptions& options);
  Result<std::int32_t> next_sender(const CallOptions& options);
  Result<std::optional<std::int32_t>> try_next_sender();
  Status use_plan(const UserPlan& plan, const PlanUse& use);
  Algorithm auto_algorithm(CollectiveKind kind, std::size_t count, DataType type);
  std::optional<double> predicted_us(CollectiveKind kind, std::size_t count, DataType type, Algorithm algorithm);

  // Returns an operation that is ready to be submitted. For a call that is cut into segments this is the first
  // segment, which holds the others. The operation has no sequence number yet, and dropping it has no effect on the
  // communicator.
  Result<std::shared_ptr<Operation>> prepare(const CollectiveCall& call, const CallOptions& options);
  Result<std::shared_ptr<Operation>> prepare_exchange(CheckedExchange exchange, const CallOptions& options);
  Engine& engine() { return engine_; }
  Caller caller() const { return {.rank = rank_, .ranks = ranks_}; }
  std::mutex& submission_mutex() { return mutex_; }  // hold it while calling a prepare function and submit()
  Log& log() { return environment_.log; }
  // Registers a Group of `thread` that holds calls for this communicator. Returns false if the thread already has
  // such a Group. A Group belongs to the thread that added its first call. Hold the submission mutex.
  bool open_group(std::thread::id thread);
  void close_group(std::thread::id thread) { std::erase(group_threads_, thread); }

  Result<Memory> allocate(std::size_t bytes);
  Result<Memory> register_memory(void* data, std::size_t bytes);
  // `name`: the public function that was called, for error messages.
  Result<std::unique_ptr<Communicator>> split(std::int32_t colour, std::int32_t key, std::string_view name);
  Result<std::unique_ptr<Communicator>> shrink(std::span<const std::int32_t> excluded);
  Result<std::unique_ptr<Communicator>> shrink_to_survivors();
  // `self`: the public object that owns this CommunicatorImpl.
  Result<std::unique_ptr<Communicator>> grow(Communicator& self, std::int32_t size, const std::optional<UniqueId>& id);
  Result<Agreement> agree(const AgreeOptions& options);
  Status async_status();
  Status suspend();
  Status resume();
  std::uint64_t device_memory_use();
  Status submit(const std::shared_ptr<Operation>& operation, Engine::Progress progress);
  // For a call that a GPU carries out: makes the call's stream wait for the call (LaunchGroup::settle()). Call it
  // after submit() and after everything else that the same thread submits with this call. Other operations need
  // nothing here.
  static Status settle(const Operation& operation);
  Status finalize();
  void abort();

 private:
  Error end_by_exception() noexcept;
  Result<std::shared_ptr<Operation>> prepare_transfer(Direction direction, const void* data, std::size_t count,
                                                      DataType type, std::int32_t peer, const CallOptions& options);
  Result<Work> submit_work(const std::shared_ptr<Operation>& operation);
  Result<std::vector<Transfer>> probes() const;
  struct PlanKey {
    CollectiveKind kind = CollectiveKind::kAllReduce;
    Algorithm algorithm = Algorithm::kAuto;
    std::uint32_t root = 0;
    std::uint32_t digest = 0;  // digest of a caller's plan; 0 for the built-in algorithms

    auto operator<=>(const PlanKey&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
  };
  // A caller's plan, and the calls that it is used for.
  struct ChosenPlan {
    UserPlan plan;
    PlanUse use;
  };
  const ChosenPlan* find_user_plan(const Collective& collective, std::uint64_t bytes, Algorithm asked) const;
  Result<std::shared_ptr<Operation>> prepare_collective(const CollectiveCall& call, const CallOptions& options);
  Result<std::shared_ptr<Operation>> make_segments(const CheckedCall& whole, const CallOptions& options,
                                                   BoundPlan& plan);
  Result<std::shared_ptr<Operation>> make_operation(CheckedCall checked, const CallOptions& options, BoundPlan& plan,
                                                    std::uint64_t bytes);
  std::optional<Status> run_short_call(const CollectiveCall& call, const CallOptions& options,
                                       std::unique_lock<std::mutex>& lock);
  Result<std::shared_ptr<Operation>> prepare_v_exchange(const CollectiveCall& call, const CallOptions& options);
  Result<BoundPlan*> plan_for(const Collective& collective, Algorithm algorithm, const ChosenPlan* chosen);
  Result<Generator> generator_for(const Collective& collective, Algorithm algorithm, const ChosenPlan* chosen) const;
  Result<Memory> register_on_device(void* data, std::size_t bytes);
  Result<Memory> share_device_memory(void* data, std::size_t bytes);
  Result<std::shared_ptr<Operation>> prepare_on_device(const CheckedCall& checked, const CallOptions& options,
                                                       Algorithm algorithm, const ChosenPlan* chosen);
  Result<bool> runs_on_device(const CallOptions& options, const CheckedCall& checked);
  Error escalate_device_error(const Error& error, const CallTag& tag);
  void listen_to_devices();
  Result<std::unique_ptr<BoundPlan>> make_plan(const Collective& collective, Algorithm algorithm,
                                               const ChosenPlan* chosen);
  Status refuse_in_group() const;
  // The uniform mode: calls end in the same way on all ranks. See uniform.cc.
  Status confirm(const Status& own);
  Result<bool> settle(bool own_ok, std::chrono::milliseconds timeout);
  Status settle_before(std::chrono::milliseconds timeout);
  // The two sequences of agreements are independent: agree() uses kAll, the uniform mode uses kCalls.
  enum class ConsensusTopic : std::uint8_t { kAll, kCalls };
  Result<ConsensusDecision> decide_by_consensus(ConsensusTopic topic, const ConsensusVote& vote,
                                                std::chrono::milliseconds timeout);
  template <class Checked>  // CheckedCall or CheckedExchange
  Result<std::shared_ptr<StartCondition>> staged_for(Checked& checked, const CallOptions& options);
  Result<std::vector<std::string>> all_gather_blobs(const std::string& blob);
  Status take_plan(const UserPlan& plan, const PlanUse& use);
  Result<std::unique_ptr<Communicator>> try_split(std::int32_t colour, std::int32_t key);
  static Error in_parent_ranks(const std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint64_t>>& chosen,
                               Error error);
  Result<std::unique_ptr<Communicator>> make_child(
      const std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint64_t>>& chosen, const Gather& among);
  Result<std::vector<std::uint32_t>> remaining_ranks(std::span<const std::int32_t> excluded) const;
  Result<std::unique_ptr<Communicator>> try_shrink(std::span<const std::int32_t> excluded);
  Result<std::unique_ptr<Communicator>> shrink_to(const std::vector<std::uint32_t>& present);
  Result<std::unique_ptr<Communicator>> shrink_to_one();
  Result<std::unique_ptr<Communicator>> make_survivor_communicator(SurvivorRendezvous& rendezvous,
                                                                   const std::vector<std::uint32_t>& present);
  Collective collective_of(CollectiveKind kind) const;
  std::uint32_t tile_bytes_of(const Selection& chosen) const {
    return chosen.chunk_bytes > 0 ? chosen.chunk_bytes
                                  : static_cast<std::uint32_t>(environment_.transport->slot_bytes());
  }
  std::int64_t timeout_ns(const CallOptions& options) const;

  pid_t process_ = getpid();
  std::uint32_t rank_;
  std::uint32_t ranks_;
  // Shared with the communicators that were split from this one or that this one was split from. Outlives the
  // transport.
  std::shared_ptr<JobContext> job_context_;
  std::vector<std::uint32_t> members_;
  const std::uint64_t id_;
  std::mutex rendezvous_mutex_;
  // Made by the first shrink(). It must be destroyed before job_context_.
  std::unique_ptr<SurvivorRendezvous> rendezvous_;
  std::mutex consensus_mutex_;
  // Made when the uniform mode first needs an agreement, and by the first agree(), respectively. Guarded by
  // consensus_mutex_. They must be destroyed before job_context_.
  std::unique_ptr<ConsensusParticipant> call_consensus_;
  std::unique_ptr<ConsensusParticipant> consensus_;
  Environment environment_;
  std::chrono::milliseconds timeout_;
  // Orders submissions. Guards plans_ to user_plans_, selector_, group_threads_ and host_staging_.
  mutable std::mutex mutex_;
  Connections connections_;
  std::map<PlanKey, std::unique_ptr<BoundPlan>> plans_;
  PlanKey last_key_;  // key of last_plan_
  BoundPlan* last_plan_ = nullptr;
  // For one type of collective: the plans that were used last by calls without messages, for run_short_call().
  struct ShortPlans {
    BoundPlan* by_mailbox = nullptr;
    BoundPlan* direct = nullptr;
    Selection chosen{};  // the selector's answer for chosen_bytes; kAuto: not asked yet
    std::size_t chosen_bytes = 0;
  };
  std::array<ShortPlans, static_cast<std::size_t>(CollectiveKind::kSendReceive)> short_plans_{};
  std::vector<ChosenPlan> user_plans_;
  const bool uniform_;                 // CommunicatorOptions::uniform, and there is more than one rank
  std::mutex uniform_mutex_;           // held during a call and its confirmation; guards calls_ to agreeing_
  std::int64_t calls_ = 0;             // number of calls that have taken part in the vote
  bool resolved_ = true;               // whether this rank knows how the last call ended
  std::int64_t last_failed_call_ = 0;  // number of the last call that is known to have failed; 0: none
  // Set when the communicator takes no more calls: the reason.
  std::optional<Error> calls_ended_;
  // All survivors have learned through an agreement that there will be no more calls.
  bool settled_ = false;
  // settle_before() has succeeded, but the agree() that it prepared has not; agree() may be called again.
  bool agreeing_ = false;
  AlgorithmSelector selector_;
  std::vector<std::thread::id> group_threads_;  // guarded by mutex_
  const bool driver_loaded_;                    // whether the CUDA driver was loaded when this was made
  // Null until a call finds the CUDA driver loaded. Outlives the engine's last use of it.
  std::unique_ptr<HostStaging> host_staging_;
  // Lock order: mutex_ first, then device_mutex_. Hold both to replace device_executor_. Hold at least one of them
  // to use it.
  std::mutex device_mutex_;
  std::unique_ptr<DeviceExecutor> device_executor_;  // non-null if the ranks' GPUs carry out calls
  std::atomic<std::uint64_t> calls_on_device_ = 0;
  bool suspended_ = false;  // device_executor_ is null until resume()
  // The same on all ranks. If the GPUs carry out the calls themselves, calls are not cut: there are no staging
  // copies to overlap with.
  const Segmentation segmentation_;
  Engine engine_;  // must be the last member, so that it is destroyed before the members that it uses
};

// Longer timeouts are shortened to this one.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24);

}  // namespace tutti::detail
