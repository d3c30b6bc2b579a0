// Engine: runs the operations of one communicator, one after another, in the order of their submission.
//
// One thread at a time drives: the thread that waits for an operation if there is one (a blocking call makes progress
// where it blocks anyway), else the engine's own progress thread, which is started by the first operation that nobody
// waits for. Driving means polling the execution and, when nothing moves, pausing as the world's Waiter says; deadline,
// abort and the peers' boards are looked at between pauses.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "executor/bytes.h"
#include "runtime/diagnose.h"
#include "runtime/world.h"
#include "tutti/communicator.h"

namespace tutti {

// One submitted call. Fields are guarded by the engine's mutex, but `execution`, which belongs to the driver, and
// `done`.
struct Operation {
  Call call;
  const BoundPlan* plan = nullptr;
  std::int64_t timeout_ns = 0;
  bool started = false;
  std::int64_t deadline_ns = 0;  // set when it starts, moved on when it has made progress
  bool progressed = false;       // since the driver last looked at the clock; the driver's
  Status result;                 // valid once done
  std::atomic<bool> done = false;
};

class Engine {
 public:
  // `world` and `connections` outlive the engine.
  Engine(std::uint32_t rank, std::uint32_t ranks, World& world, Connections& connections)
      : rank_(rank), ranks_(ranks), world_(world), connections_(connections) {}
  // Ends what is under way with kAborted.
  ~Engine();

  // Queues the operation. nobody_waits: the progress thread takes care of it until somebody does.
  enum class Progress : std::uint8_t { kByCaller, kInBackground };
  // Gives the operation its sequence number. On an error nothing was queued and no number was taken.
  Status submit(const std::shared_ptr<Operation>& operation, Progress progress);
  Status wait(Operation& operation);
  bool test(Operation& operation);

  // From any thread.
  void abort();
  // The error that made the communicator unusable, if one did.
  std::optional<Error> broken();

 private:
  enum class Until : std::uint8_t { kDone, kWanted, kOnePoll };  // when a drive ends at the latest

  void drive(std::unique_lock<std::mutex>& lock, Operation& until_done);
  void background();
  bool run_front(std::unique_lock<std::mutex>& lock, Until until);
  void start(Operation& operation);
  std::optional<Error> poll(Operation& operation, bool& moved);
  std::optional<Error> look_around(Operation& operation);
  std::optional<Error> pause(Operation& operation, Idle& idle);
  void finish(Operation& operation, Status result);
  Error give_up(const Operation& operation, Diagnosis diagnosis);
  void wait_for_peers(std::int64_t latest_ns, const std::function<bool(const PeerStatus&)>& wanted);

  std::uint32_t rank_;
  std::uint32_t ranks_;
  World& world_;
  Connections& connections_;
  std::atomic<bool> aborted_{false};

  std::mutex mutex_;
  std::condition_variable changed_;               // driver left, operation done, queue filled, or ending
  std::deque<std::shared_ptr<Operation>> queue_;  // shared with the callers' Work, which may be dropped first
  std::uint64_t last_sequence_ = 0;
  bool driven_ = false;                    // some thread drives
  std::atomic<std::uint32_t> wanting_{0};  // threads that wait to drive
  bool background_wanted_ = false;         // an operation was submitted that nobody may wait for
  bool ending_ = false;
  std::optional<Error> broken_;
  std::thread progress_thread_;
  std::unique_ptr<Execution> execution_;  // of the front operation; the driver's
  const BoundPlan* execution_plan_ = nullptr;
  bool last_failed_ = false;       // the driver's
  std::int64_t last_look_ns_ = 0;  // the driver's
};

}  // namespace tutti
