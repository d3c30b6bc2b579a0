// OperationRecorder: writes entries about an engine's operations into the rank's flight recorder (job/recorder.h).
// If there is no recorder, all functions do nothing. The class has no threads or locks. Only the engine's driver
// uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/collective_tasks.h"
#include "engine/engine_state.h"
#include "engine/operation.h"
#include "plan/buffer_bytes.h"

namespace tutti {

// The length in bytes of the longer one of this rank's input and output, for a collective that runs as a plan or
// instead of one.
inline std::uint64_t recorded_bytes(const Call& call, const Collective& collective, std::uint32_t rank) {
  // In a v-variant that runs as a plan, one of the two buffers has all blocks, and the tag has the sum of their counts.
  if (!call.lengths.counts.empty()) return call.tag.count * call.element_bytes;
  return longer_buffer_bytes(collective, rank, call.lengths.count * call.element_bytes);
}

class OperationRecorder {
 public:
  // `context` and `tasks` must outlive this object.
  OperationRecorder(const EngineContext& context, const CollectiveTasks& tasks) : context_(context), tasks_(tasks) {}

  // Records that an operation starts.
  void begin(Operation& operation) {
    if (context_.recorder != nullptr) record_begin(operation);
  }
  // Records that an operation has ended, with `result`, even if it never started.
  void end(Operation& operation, const Status& result) {
    if (context_.recorder != nullptr) record_end(operation, result);
  }
  // Records that some operation has made progress.
  void moved() {
    if (context_.recorder != nullptr) context_.recorder->moved();
  }
  // If the recorder asks for it at the time `now_ns`, records which ranks the first of the `active` operations
  // waits for, and for which reason.
  void wait(std::span<const std::shared_ptr<Operation>> active, std::int64_t now_ns) {
    if (context_.recorder != nullptr && context_.recorder->should_record_wait(now_ns)) record_wait(active, now_ns);
  }
  // Records how many TCP segments the kernel has sent again to each peer.
  void record_retransmissions();
  // Does the same, unless it did so less than `every_ns` ago. `now_ns`: the time.
  void sample_retransmissions(std::int64_t now_ns, std::int64_t every_ns = kSampleEveryNs) {
    if (context_.recorder == nullptr || now_ns - last_sample_ns_ < every_ns) return;
    last_sample_ns_ = now_ns;
    record_retransmissions();
  }

 private:
  // The least time between two recordings by sample_retransmissions(): while calls run, and when a call fails, because
  // many calls can fail at once.
  static constexpr std::int64_t kSampleEveryNs = 1'000'000'000;
  static constexpr std::int64_t kLeastBetweenSamplesNs = 10'000'000;

  void begin_collective(Operation& operation, std::uint8_t flags);
  void record_begin(Operation& operation);
  void record_end(Operation& operation, const Status& result);
  void record_wait(std::span<const std::shared_ptr<Operation>> active, std::int64_t now_ns);

  const EngineContext& context_;
  const CollectiveTasks& tasks_;
  std::int64_t last_sample_ns_ = 0;  // time of the last sample
};

}  // namespace tutti
