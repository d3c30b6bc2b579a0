// What stands behind the public Communicator, Work and Memory. Internal to src/communicator and its tests.
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
  // Before anybody waits.
  void set_parts(std::vector<Part> parts) noexcept { parts_ = std::move(parts); }
  // All pieces of a call.
  static void add(Engine& engine, const std::shared_ptr<Operation>& operation, std::vector<Part>& parts);
  // Both leave an engine alone once its operation is done, so that a Work may outlive its communicators, which end
  // everything.
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
  std::size_t bytes_;  // as asked for; the window may be longer
  std::unique_ptr<Window> window_;
  std::unique_ptr<DeviceWindow> device_window_;  // in place of the other
};

class CommunicatorImpl {
 public:
  // `members`: the job ranks of all ranks. `id`: the number that its transport has. Without a job_context (a simulated
  // environment) it can be neither split nor shrunk.
  CommunicatorImpl(std::uint32_t rank, std::uint32_t ranks, Environment environment, std::chrono::milliseconds timeout,
                   std::shared_ptr<JobContext> job_context = nullptr, std::vector<std::uint32_t> members = {},
                   std::unique_ptr<DeviceResources> devices = nullptr, std::uint64_t id = 0);
  ~CommunicatorImpl();

  static std::unique_ptr<Communicator> wrap(std::unique_ptr<CommunicatorImpl> impl);

  // Runs the body of a public function. An exception, for example std::bad_alloc, becomes its error. It also ends this
  // communicator and all that is under way on it, because ranks that take part wait for this one.
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
  std::uint32_t nodes() const {  // they are numbered 0, 1, ...
    return environment_.nodes.empty() ? 1 : *std::max_element(environment_.nodes.begin(), environment_.nodes.end()) + 1;
  }
  bool runs_on_devices() const { return device_executor_ != nullptr; }
  std::uint64_t calls_on_device() const { return calls_on_device_.load(std::memory_order_relaxed); }
  static const CommunicatorImpl& of(const Communicator& communicator) { return *communicator.impl_; }
  static CommunicatorImpl& of(Communicator& communicator) { return *communicator.impl_; }
  std::string transport_name() const { return std::string(environment_.transport->name()); }
  Status run(const CollectiveCall& call, const CallOptions& options);
  // The same where nothing is confirmed.
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

  // Ready to be submitted, of a call in pieces the first, which has the others. The operation has no number yet, and
  // nothing has happened.
  Result<std::shared_ptr<Operation>> prepare(const CollectiveCall& call, const CallOptions& options);
  Result<std::shared_ptr<Operation>> prepare_exchange(CheckedExchange exchange, const CallOptions& options);
  Engine& engine() { return engine_; }
  Caller caller() const { return {.rank = rank_, .ranks = ranks_}; }
  std::mutex& submission_mutex() { return mutex_; }  // held around prepare functions and submit
  Log& log() { return environment_.log; }
  // Of Groups that have calls for this communicator, each by the thread that gave it the first of them, which has no
  // other one: false. Under the submission mutex.
  bool open_group(std::thread::id thread);
  void close_group(std::thread::id thread) { std::erase(group_threads_, thread); }

  Result<Memory> allocate(std::size_t bytes);
  Result<Memory> register_memory(void* data, std::size_t bytes);
  // `name`: of the function that was called, for errors.
  Result<std::unique_ptr<Communicator>> split(std::int32_t colour, std::int32_t key, std::string_view name);
  Result<std::unique_ptr<Communicator>> shrink(std::span<const std::int32_t> excluded);
  Result<std::unique_ptr<Communicator>> shrink_to_survivors();
  // `self`: the communicator that this is behind.
  Result<std::unique_ptr<Communicator>> grow(Communicator& self, std::int32_t size, const std::optional<UniqueId>& id);
  Result<Agreement> agree(const AgreeOptions& options);
  Status async_status();
  Status suspend();
  Status resume();
  DeviceMemoryUse device_memory_use();
  Status submit(const std::shared_ptr<Operation>& operation, Engine::Progress progress);
  // After submit(), and after whatever else the same thread submits with it.
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
    std::uint32_t digest = 0;  // of a caller's plan, else 0

    auto operator<=>(const PlanKey&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
  };
  // A caller's plan and when it is taken.
  struct ChosenPlan {
    UserPlan plan;
    PlanUse use;
  };
  const ChosenPlan* find_user_plan(const Collective& collective, std::uint64_t bytes, Algorithm asked) const;
  Result<std::shared_ptr<Operation>> prepare_collective(const CollectiveCall& call, const CallOptions& options);
  Result<std::shared_ptr<Operation>> make_pieces(const CheckedCall& whole, const CallOptions& options, BoundPlan& plan);
  Result<std::shared_ptr<Operation>> make_operation(CheckedCall checked, const CallOptions& options, BoundPlan& plan,
                                                    std::uint64_t bytes);
  std::optional<Status> run_at_once(const CollectiveCall& call, const CallOptions& options,
                                    std::unique_lock<std::mutex>& lock);
  Result<std::shared_ptr<Operation>> prepare_v_exchange(const CollectiveCall& call, const CallOptions& options);
  Result<BoundPlan*> plan_for(const Collective& collective, Algorithm algorithm, const ChosenPlan* chosen);
  Result<Generator> generator_for(const Collective& collective, Algorithm algorithm, const ChosenPlan* chosen) const;
  Result<Memory> register_on_device(void* data, std::size_t bytes);
  Result<Memory> share_device_memory(void* data, std::size_t bytes);
  Result<std::shared_ptr<Operation>> prepare_on_device(const CheckedCall& checked, const CallOptions& options,
                                                       Algorithm algorithm, const ChosenPlan* chosen);
  Result<bool> goes_by_device(const CallOptions& options, const CheckedCall& checked);
  Error lose(const Error& error, const CallTag& tag);
  void listen_to_devices();
  Result<std::unique_ptr<BoundPlan>> make_plan(const Collective& collective, Algorithm algorithm,
                                               const ChosenPlan* chosen);
  Status refuse_in_group() const;
  // The uniform mode, see uniform.cc.
  Status confirm(const Status& own);
  Result<bool> settle(bool own_ok, std::chrono::milliseconds patience);
  Status settle_before(std::chrono::milliseconds patience);
  enum class Matter : std::uint8_t { kAll, kCalls };  // each has agreements of its own
  Result<ConsensusDecision> confer(Matter matter, const ConsensusVote& voice, std::chrono::milliseconds patience);
  template <class Checked>  // a call or an exchange
  Result<std::shared_ptr<StartCondition>> staged_for(Checked& checked, const CallOptions& options);
  Result<std::vector<std::string>> all_gather_blobs(const std::string& blob);
  Status take_plan(const UserPlan& plan, const PlanUse& use);
  Result<std::unique_ptr<Communicator>> try_split(std::int32_t colour, std::int32_t key);
  static Error in_parent_ranks(const std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint64_t>>& chosen,
                               Error error);
  Result<std::unique_ptr<Communicator>> make_child(
      const std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint64_t>>& chosen, const Gather& among);
  Result<std::vector<std::uint32_t>> all_but(std::span<const std::int32_t> excluded) const;
  Result<std::unique_ptr<Communicator>> try_shrink(std::span<const std::int32_t> excluded);
  Result<std::unique_ptr<Communicator>> shrink_to(const std::vector<std::uint32_t>& present);
  Result<std::unique_ptr<Communicator>> shrink_to_one();
  Result<std::unique_ptr<Communicator>> make_among(SurvivorRendezvous& rendezvous,
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
  std::shared_ptr<JobContext>
      job_context_;  // shared with the communicators split from here or before; outlives the transport
  std::vector<std::uint32_t> members_;
  const std::uint64_t id_;
  std::mutex rendezvous_mutex_;
  std::unique_ptr<SurvivorRendezvous> rendezvous_;  // from the first shrink() on; ends before the job_context
  std::mutex consensus_mutex_;
  std::unique_ptr<ConsensusParticipant> call_consensus_;  // likewise, of the uniform mode
  std::unique_ptr<ConsensusParticipant> consensus_;       // from the first agree() on; likewise
  Environment environment_;
  std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;  // orders submissions; guards plans_ and what follows them
  Connections connections_;
  std::map<PlanKey, std::unique_ptr<BoundPlan>> plans_;
  PlanKey last_key_;  // of the plan used last
  BoundPlan* last_plan_ = nullptr;
  // Of one kind of collective: the plans that calls without messages stood for last.
  struct ShortPlans {
    BoundPlan* by_mailbox = nullptr;
    BoundPlan* direct = nullptr;
    Selection chosen{};  // for calls of that many bytes; kAuto: not known yet
    std::size_t chosen_bytes = 0;
  };
  std::array<ShortPlans, static_cast<std::size_t>(CollectiveKind::kSendReceive)> short_plans_{};
  std::vector<ChosenPlan> user_plans_;
  const bool uniform_;                // calls end alike
  std::mutex uniform_mutex_;          // held during a call and its confirmation
  std::int64_t calls_ = 0;            // that have happened
  bool resolved_ = true;              // whether the last of them ended well is known
  std::int64_t last_bad_ = 0;         // the last one that is known to have failed; 0: none
  std::optional<Error> calls_ended_;  // why there are no more
  bool settled_ = false;              // ... which all that live know
  bool agreeing_ = false;             // settled for an agreement that was not reached yet
  AlgorithmSelector selector_;
  std::vector<std::thread::id> group_threads_;  // guarded by mutex_
  const bool knows_driver_;                     // the CUDA driver was loaded when this was made
  std::unique_ptr<HostStaging> host_staging_;   // once there was a driver; ends after the engine
  // Taken after mutex_: held where device_executor_ changes, and by those who use it without mutex_.
  std::mutex device_mutex_;
  std::unique_ptr<DeviceExecutor> device_executor_;  // where the ranks' GPUs carry out calls; else null
  std::atomic<std::uint64_t> calls_on_device_ = 0;
  bool suspended_ = false;  // it is null until resume()
  // The same on all ranks. Where the GPUs carry out the calls themselves, there is nothing to overlap.
  const Segmentation segmentation_;
  Engine engine_;  // last: ends before what it uses
};

// Longer timeouts are taken as this one.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24);

}  // namespace tutti::detail
