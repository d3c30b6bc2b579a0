// DeviceCall: one call of one rank that GPUs carry out. The thread that makes the call fills the object in. After
// LaunchGroup::submit() the group uses it, and the group's mutex guards its private members. Any thread may call
// finished(), outcome() and settle().
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/call_tag.h"
#include "cuda/resources.h"
#include "device/native/copy_engines.h"
#include "engine/engine.h"
#include "engine/operation.h"
#include "executor/device_program.h"
#include "executor/device_transfers.h"
#include "executor/exchange.h"
#include "kernels/device/call.h"

namespace tutti::detail {

class LaunchGroup;

// The copy of a plan's program from pinned host memory to device memory. The first launch of the plan puts it into the
// stream of that launch. A stream only for the copy could share a hardware queue with a stream that waits, and the call
// would wait with it. Only a captured call uses such a stream, because the copy must not become a part of the graph.
struct ProgramUpload {
  ProgramUpload(cuda::CUdeviceptr to_device, std::span<const std::byte> from_pinned)
      : to(to_device), from(from_pinned) {}

  const cuda::CUdeviceptr to;
  const std::span<const std::byte> from;
  // True if the copy has ended, or if a stream has the copy and behind it a launch. Later launches run behind that
  // launch (for launches in graphs, the caller is responsible for this order). Two threads that find `done` unset both
  // copy the program, which does no harm because the bytes are the same.
  std::atomic<bool> done = false;

  // Puts the copy into `stream`, whose context must be current. Errors: those of the driver.
  Status put(const cuda::Driver& driver, cuda::CUstream stream) const;
};

// A call that consists of sends and receives, and not of a collective.
struct TransferCall {
  DeviceTransfers packed;
  std::vector<OwnCopy> own;  // copies within this rank's GPU
  std::uint32_t blocks = 1;  // the most thread blocks that the launch can use
  // The transfers without bytes, or null. The host carries them out, because a rank whose transfers all have no bytes
  // cannot tell whether they are in device memory. So the host also matches them with the transfers of the peers, and
  // checks that those have no bytes either.
  std::shared_ptr<Operation> empty{};

  bool is_with(std::uint32_t peer) const {
    return std::ranges::any_of(packed.queues, [&](const auto& queue) { return queue.peer == peer; });
  }
};

class DeviceCall final : public StartCondition {
 public:
  // Launch parameters. Calls of several ranks can share a launch only if these parameters, and the tags of the
  // calls, are the same.
  struct Launch {
    // The evaluator of `protocol`, or the kernel of sends and receives. operator== ignores it, because ranks may have
    // loaded the same code separately.
    cuda::CUfunction kernel = nullptr;
    device::Protocol protocol = device::Protocol::kSimple;
    std::uint32_t channels = 1;
    std::uint32_t slices = 1;
    std::uint32_t threads = 512;
    // 0: one launch without barriers, whose kernel may wait for messages of other ranks. Otherwise the number of
    // launches that the call needs (an odd number is rounded up): their kernels do not wait, and each launch has a
    // barrier of all ranks in front of it. For a call by copies between barriers: 2, the number of barriers.
    std::uint64_t rounds = 0;

    bool operator==(const Launch& other) const {
      return protocol == other.protocol && channels == other.channels && slices == other.slices &&
             threads == other.threads && rounds == other.rounds;
    }
  };

  device::Call call;
  // tables of blocks with different lengths; the launch copies them and sets their addresses in call.geometry
  DeviceGeometry tables;
  Launch launch;
  // shared with the plan and its other calls; null for a call by copies between barriers, and for sends and receives
  std::shared_ptr<ProgramUpload> upload;
  // set: the call can be carried out by copies; these replace the kernel if all calls of the launch have them
  std::optional<CopyEngines::Copies> copies;
  // Set if the call consists of sends and receives. Then `tables`, `upload` and `copies` stay empty, and of `call` only
  // `status` is set, of `launch` only `kernel` and `threads`.
  std::optional<TransferCall> transfers;
  // The value that ranks write to each other's flags at the barriers of this call: 1 for a call in rounds, otherwise
  // see CopyEngines::set_barrier_value(); never 0. If a rank makes another call by copies in place of this one, it
  // writes another value, for which no rank of this call waits, so the barriers do not end.
  std::uint32_t barrier_value = 1;
  CallTag tag;
  // Number of this call among the collective calls of this rank on this communicator that GPUs carry out, from 1 on; 0
  // for sends and receives. Captured calls are not counted.
  std::uint64_t number = 0;
  std::uint64_t executor_id = 0;  // id of the DeviceExecutor that prepared the call
  cuda::CUstream stream = nullptr;
  std::int64_t timeout_ns = 0;

  bool open() const override { return true; }
  void ended(const Status& /*result*/) noexcept override {}
  void dropped() noexcept override {}
  std::optional<Error> lost() override { return std::nullopt; }
  // Whether a launch of this call must copy the program first.
  bool needs_upload() const { return upload != nullptr && !upload->done; }
  // A captured call counts as finished when the capture has taken it, because it runs only when the graph is
  // launched.
  bool finished() override;
  Status outcome() override;
  // Waits on the host until the call is launched or has failed, and then makes its stream wait for the launch. Every
  // submitted call must be settled. See LaunchGroup::settle().
  Status settle();
  bool is_captured() const { return capture_ != 0; }  // after submit(): whether the call runs in replays of a graph
  // The operation that the host carries out for TransferCall::empty; null if there is none.
  Operation* empty_transfers() const { return transfers ? transfers->empty.get() : nullptr; }

 private:
  friend class LaunchGroup;
  std::shared_ptr<LaunchGroup> launch_group_;  // the group to which the call was submitted; null: never submitted
  std::size_t member_index_ = 0;
  std::uint64_t capture_ = 0;  // id of the stream's capture; 0: the stream is not being captured
  // The event that is recorded in `stream` when the call is submitted. Null if the group has only one member. It
  // returns to a pool of events after use.
  std::shared_ptr<cuda::Event> ready_;
  std::shared_ptr<cuda::Event> done_;  // recorded behind the launch; shared by all calls of the launch
  cuda::CUstream launched_in_ = nullptr;
  bool launched_ = false;
  std::chrono::steady_clock::time_point deadline_{};
  std::optional<Status> outcome_;  // empty until it is known how the call has ended
};

}  // namespace tutti::detail
