// LocalDevices: the DeviceSide of a communicator whose GPUs reach each other, so that they carry out whole calls, or
// whose calls the host carries out. It owns the DeviceExecutor and a mutex that guards the pointer to it.
//
// Every function that uses the executor takes a shared_ptr to it under the mutex, because suspend() or resume() of
// another thread may replace the executor at any time. The executor is then destroyed by the last function that uses
// it.
#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "communicator/devices/device_side.h"
#include "device/native/device_failure.h"
#include "device/native/device_resources.h"

namespace tutti::detail {
namespace {

constexpr std::chrono::seconds kEmptyLimit{5};
constexpr std::chrono::milliseconds kEmptyPoll{1};

class LocalDevices final : public DeviceSide {
 public:
  LocalDevices(const Membership& membership, const Environment& environment, Engine& engine, Gather parent_round,
               std::mutex& submission_mutex, std::unique_ptr<DeviceResources> resources)
      : DeviceSide(membership, environment, engine, std::move(parent_round)),
        submission_mutex_(submission_mutex),
        executor_(make_executor(std::move(resources))) {}

  void connect_to_engine() override { listen_to(executor().get()); }

  std::shared_ptr<DeviceExecutor> executor() const override {
    const std::scoped_lock lock(mutex_);
    return executor_;
  }

  bool runs_in_parts(CollectiveKind /*kind*/, std::uint64_t /*bytes*/) const override { return false; }

  Result<bool> takes(const CheckedCall& checked, const CallOptions& options) override {
    const std::shared_ptr<DeviceExecutor> executor = this->executor();
    if (executor == nullptr || options.reduction.combine != nullptr) return false;
    auto taken = executor->takes(checked);
    if (!taken) return escalate(*executor, taken.error(), checked.call.tag);
    return taken;
  }

  Result<std::shared_ptr<Operation>> prepare(const CheckedCall& checked, const CallOptions& options,
                                             Algorithm algorithm, const PlanTable::ChosenPlan* chosen,
                                             std::int64_t timeout_ns) override {
    const std::shared_ptr<DeviceExecutor> executor = this->executor();
    // takes() has found an executor. suspend() cannot have removed it since then, because replace() needs the
    // submission mutex, which the caller holds.
    TUTTI_ASSERT(executor != nullptr);
    auto generator = PlanTable::generator_for(checked.collective, algorithm, Messages::kOneChunk, chosen);
    if (!generator) return generator.error();
    const std::uint32_t digest = chosen == nullptr ? 0 : chosen->plan.digest();
    CheckedCall tagged = checked;
    tagged.call.tag.algorithm = static_cast<std::uint8_t>(algorithm);
    tagged.call.tag.digest ^= digest;
    auto on_device = executor->prepare(tagged, *generator, digest, options, timeout_ns);
    if (!on_device) return escalate(*executor, on_device.error(), tagged.call.tag);
    if (*on_device == nullptr) return std::shared_ptr<Operation>();
    return operation_of(std::move(*on_device));
  }

  Result<bool> takes(const CheckedExchange& exchange) override {
    const std::shared_ptr<DeviceExecutor> executor = this->executor();
    if (executor == nullptr) return false;
    auto taken = executor->takes(exchange);
    if (!taken) return escalate(*executor, taken.error(), exchange.tag());
    return taken;
  }

  Result<std::shared_ptr<Operation>> prepare(CheckedExchange exchange, std::shared_ptr<Operation> empty,
                                             const CallOptions& options, std::int64_t timeout_ns) override {
    const std::shared_ptr<DeviceExecutor> executor = this->executor();
    TUTTI_ASSERT(executor != nullptr);  // as in the function above
    const CallTag tag = exchange.tag();
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    for (const Transfer& transfer : exchange.transfers)
      (transfer.direction == Direction::kSend ? sent : received) += transfer.tag.count;
    auto made = executor->prepare(std::move(exchange), std::move(empty), options, timeout_ns);
    if (!made) return escalate(*executor, made.error(), tag);
    std::shared_ptr<Operation> operation = operation_of(std::move(*made));
    operation->call.tag.count = std::max(sent, received);  // for the recorder
    return operation;
  }

  Status submit(const Operation& operation) override {
    const std::shared_ptr<DeviceExecutor> executor = this->executor();
    const auto call = std::static_pointer_cast<DeviceCall>(operation.start_condition);
    if (executor == nullptr || !executor->prepared(*call)) {
      return invalid_argument(
          "the communicator was suspended after this call was added to a Group: make a new Group after resume()");
    }
    const std::shared_ptr<Operation> empty = call->transfers ? call->transfers->empty : nullptr;
    if (empty != nullptr && engine_.capacity() == 0) {
      return invalid_argument("too many operations of this communicator are under way: wait for some of them first");
    }
    if (environment_.recorder != nullptr) environment_.recorder->enqueued(operation.call.tag, operation.call.label);
    if (!call->transfers) call->number = collectives_ + 1;
    Status submitted = executor->submit(call);
    if (submitted.ok()) {
      calls_.fetch_add(1, std::memory_order_relaxed);
      if (!call->transfers && !call->is_captured()) environment_.transport->publish_device_calls(++collectives_);
    }
    if (!submitted.ok() && submitted.error().scope >= ErrorScope::kCommunicator) engine_.fail(submitted.error());
    if (!submitted.ok() || empty == nullptr) return submitted;
    std::erase_if(empty_, [](const auto& one) { return one->done && one->result.ok(); });
    empty_.push_back(empty);
    // In the background, because the call returns before its stream has run it.
    const Status queued = engine_.submit(empty, Engine::Progress::kInBackground);
    if (queued.ok()) return submitted;
    empty_.pop_back();                                 // it was never begun, so wait_for_empty() must not wait for it
    const Error error = broken_error(queued.error());  // the other transfers are in the stream already
    executor->fail(error);
    engine_.fail(error);
    return error;
  }

  Status settle(const Operation& operation) override {
    return static_cast<DeviceCall&>(*operation.start_condition).settle();
  }

  std::optional<Error> take_error() override {
    const auto failed = std::ranges::find_if(empty_, [](const auto& one) { return one->done && !one->result.ok(); });
    if (failed == empty_.end()) return std::nullopt;
    Error error = (*failed)->result.error();
    empty_.erase(failed);
    return error;
  }

  void wait_for_empty() noexcept override {
    const auto deadline = std::chrono::steady_clock::now() + kEmptyLimit;
    runs_through([&] {
      for (const std::shared_ptr<Operation>& one : empty_) {
        while (!engine_.test(*one) && std::chrono::steady_clock::now() < deadline)
          std::this_thread::sleep_for(kEmptyPoll);
      }
    });
  }

  std::optional<Error> failure() override {
    const std::shared_ptr<DeviceExecutor> executor = this->executor();
    return executor == nullptr ? std::nullopt : executor->failure(true);
  }

  void fail(const Error& error) noexcept override {
    if (const std::shared_ptr<DeviceExecutor> executor = this->executor()) executor->fail(error);
  }

  void abort() override {
    if (const std::shared_ptr<DeviceExecutor> executor = this->executor()) executor->abort();
  }

  Status finish() override {
    const std::shared_ptr<DeviceExecutor> executor = this->executor();
    return executor == nullptr ? Status() : executor->finish();
  }

  Status suspend() override {
    Result<std::string> ready = std::string();
    {
      const std::shared_ptr<DeviceExecutor> executor = this->executor();
      if (executor != nullptr && executor->resources().windows()->used() > 0) {
        ready = invalid_argument("device memory is registered with this communicator: release it on all ranks first");
      } else if (executor != nullptr) {
        if (const Status finished = executor->finish(); !finished.ok()) ready = finished.error();
      }
    }
    // All ranks suspend, or no rank does, unless this round fails on some ranks only.
    if (auto all = round(ready); !all) return all.error();
    replace(nullptr, true);
    return wait_until_freed();
  }

  Status resume() override {
    {
      const std::scoped_lock lock(mutex_);
      if (!suspended_) return {};
    }
    std::uint64_t id = 0;
    Result<std::string> mine = Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the system gives no random numbers"};
    if (getrandom(&id, sizeof(id), 0) == static_cast<ssize_t>(sizeof(id))) {
      mine = std::string(reinterpret_cast<const char*>(&id), sizeof(id));
    }
    const auto ids = round(mine);
    if (!ids) return ids.error();
    if (ids->front().size() != sizeof(id)) {
      return Error{ErrorCode::kRefused, ErrorScope::kCall, 0, "rank 0 sent a malformed message in resume()"};
    }
    std::memcpy(&id, ids->front().data(), sizeof(id));
    auto resources = make_device_resources(*membership_.job_context, membership_.members, membership_.rank, id,
                                           environment_, parent_round_);
    // If `resources` is an error or null, make_device_resources() has freed the memory that it had allocated. Wait
    // until this is so on all ranks.
    if (!resources || *resources == nullptr) static_cast<void>(wait_until_freed());
    if (!resources) return with_call_scope(std::move(resources).error());
    replace(make_executor(std::move(*resources)), false);
    return {};
  }

  std::uint64_t memory_use() const override {
    const std::shared_ptr<DeviceExecutor> executor = this->executor();
    return executor == nullptr ? 0 : executor->resources().memory_bytes();
  }

 private:
  std::shared_ptr<DeviceExecutor> make_executor(std::unique_ptr<DeviceResources> resources) const {
    if (resources == nullptr) return nullptr;
    // Shared with functions of other threads that may still use the executor when it is replaced.
    return std::make_shared<DeviceExecutor>(std::move(resources), membership_.rank, membership_.ranks,
                                            *environment_.plan_cache);
  }

  // A LaunchGroup may report a failure from any thread, and may outlive the engine; therefore it gets the EngineHandle,
  // which is safe in both cases.
  void listen_to(DeviceExecutor* executor) {
    engine_.set_beside_devices(executor != nullptr);
    if (executor == nullptr) return;
    executor->on_failure([handle = engine_.handle()](const Error& error) { handle->fail(error); });
  }

  // Handles an error of the executor. If it affects more than this call (scope kCommunicator or wider), this rank
  // cannot take part any more, so its executor and its engine fail, and the peers are notified. Errors of smaller
  // scope, errors that the peers detect by themselves (peers_see()), and errors after the executor has failed are
  // returned unchanged.
  Error escalate(DeviceExecutor& executor, const Error& error, const CallTag& tag) {
    if (error.scope < ErrorScope::kCommunicator || peers_see(error.code) || executor.failure(false)) return error;
    const Error lost = lost_error(error, membership_.rank, &tag);
    executor.fail(lost);
    engine_.fail(lost);
    return lost;
  }

  static std::shared_ptr<Operation> operation_of(std::shared_ptr<DeviceCall> call) {
    auto operation = std::make_shared<Operation>();
    operation->on_device = true;
    operation->done = true;
    operation->call.tag = call->tag;
    operation->start_condition = std::move(call);
    return operation;
  }

  // Waits until every rank has freed its memory. Ranks of one process share some of it, and the last one frees it in
  // the context of the rank to which it belongs. The driver then waits for the work on that GPU. Without this round, a
  // rank could already have started a call there that waits for the rank which is still freeing memory.
  Status wait_until_freed() {
    const auto all = round(std::string());
    return all.ok() ? Status() : Status(all.error());
  }

  // Installs a new executor, or none. The previous executor is destroyed after the mutexes are unlocked, because its
  // destructor waits for the GPU.
  void replace(std::shared_ptr<DeviceExecutor> executor, bool suspended) {
    listen_to(executor.get());  // registered before any call can be submitted to the new executor
    const std::scoped_lock lock(submission_mutex_, mutex_);
    // A repeated suspend() finds no executor, but resume() must still make one, so suspended_ stays true. If the host
    // carried out the calls anyway, there was nothing to suspend, and resume() has nothing to do.
    suspended_ = suspended && (suspended_ || executor_ != nullptr);
    executor_.swap(executor);
  }

  std::mutex& submission_mutex_;
  // Lock order: submission_mutex_ first, then mutex_. Hold both to replace executor_, so that it stays the same while a
  // call is prepared, and while it is submitted. For a call of a Group it may change in between; submit() detects that.
  mutable std::mutex mutex_;
  // Non-null if the ranks' GPUs carry out calls. Shared with functions of other threads that may still use it when it
  // is replaced.
  std::shared_ptr<DeviceExecutor> executor_;
  bool suspended_ = false;  // if true, executor_ is null until resume(); guarded by mutex_
  // Number of collectives that were submitted and not captured. Guarded by the submission mutex.
  std::uint64_t collectives_ = 0;
  std::vector<std::shared_ptr<Operation>> empty_;  // TransferCall::empty of calls; ended ones are removed later
};

}  // namespace

std::unique_ptr<DeviceSide> make_local_devices(const Membership& membership, const Environment& environment,
                                               Engine& engine, Gather parent_round, std::mutex& submission_mutex,
                                               std::unique_ptr<DeviceResources> resources) {
  return std::make_unique<LocalDevices>(membership, environment, engine, std::move(parent_round), submission_mutex,
                                        std::move(resources));
}

}  // namespace tutti::detail
