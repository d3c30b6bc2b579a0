// Engine: runs the operations of one communicator: collectives one after another, in the order of their submission, and
// beside them all exchanges (groups of sends and receives) that are under way, whose transfers keep their order per
// pair of ranks only.
//
// One thread at a time drives: the thread that waits for an operation if there is one (a blocking call makes progress
// where it blocks anyway), else the engine's own progress thread, which is started by the first operation that nobody
// waits for. Driving means polling the execution and, when nothing moves, pausing as the environment's Waiter says;
// deadline, abort and the peers' boards are looked at between pauses.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/failure_analyzer.h"
#include "executor/exchange.h"
#include "executor/inline_collective.h"
#include "executor/plan_execution.h"
#include "executor/single_copy.h"
#include "job/environment.h"
#include "tutti/communicator.h"

namespace tutti {

// What some operations wait for before they begin, and who hears of their end: a caller's stream. Shared by the
// operation and the stream, whichever ends last.
class StartCondition {
 public:
  virtual ~StartCondition() = default;
  // From any thread.
  virtual bool open() const = 0;
  // By the driver, now and then while it is not open: why it never will be.
  virtual std::optional<Error> lost() = 0;
  // By the driver, once, when the operation has ended, however it did.
  virtual void ended(const Status& result) noexcept = 0;
  // By the driver, instead: it never began, since an earlier piece of the same call failed.
  virtual void dropped() noexcept = 0;
  // From any thread: what follows the operation's end has happened, too, or never will.
  virtual bool finished() = 0;
  virtual Status outcome() = 0;  // how that went, once it is finished
};

// One submitted call: a collective, or an exchange. Fields are guarded by the engine's mutex until the operation has
// started, then they are the driver's; all but `done`.
struct Operation {
  Call call;                        // of a collective; of an exchange: the tag says what for
  BoundPlan* plan = nullptr;        // null for an exchange
  bool by_mailbox = false;          // a collective that needs no messages; the plan is what it stands for
  bool direct = false;              // one that needs none where all memory is registered
  std::vector<Transfer> transfers;  // of an exchange
  std::vector<OwnCopy> own;         // likewise
  std::unique_ptr<Exchange> exchange;
  bool probes = false;                              // an exchange that only looks
  std::shared_ptr<StartCondition> start_condition;  // null: it begins at once
  bool on_device = false;  // a GPU carries it out, the engine never sees it: the start_condition is a DeviceCall
  // A call in pieces (pieces.h) is that many operations, which follow each other in the queue.
  bool follows = false;                          // a piece, and not the first
  std::vector<std::shared_ptr<Operation>> rest;  // of the first: the others, in order; shared as this one
  std::int64_t timeout_ns = 0;
  bool started = false;
  std::uint64_t recorded = 0;     // its serial in the recording; 0: it is not in it
  std::int64_t deadline_ns = 0;   // set when it starts, moved on when it has made progress
  std::int64_t suspected_ns = 0;  // when it first looked as if nothing more could come; 0: it does not
  std::uint32_t excuses = 0;      // how often its deadline was moved on since this rank was not running, see excuse()
  bool progressed = false;        // since the driver last looked at the clock; the driver's
  Status result;                  // valid once done
  std::atomic<bool> done = false;

  // The same call once more; of one that was never submitted.
  std::shared_ptr<Operation> again() const;  // shared as in the queue
};

class Engine;

// The way in for those that may outlive the engine: streams that submit a call when they come to it, whoever finds a
// device lost. Any thread, also one that must not call the CUDA driver.
class EngineHandle {
 public:
  explicit EngineHandle(Engine& engine) : engine_(&engine) {}
  // As Engine::submit() in the background. kAborted: the engine has ended.
  Status submit(const std::shared_ptr<Operation>& operation);
  void fail(const Error& error);  // as Engine::fail(); nothing where that has ended
  void close();

 private:
  std::mutex mutex_;  // held inside of the engine, which is short
  Engine* engine_;    // null: closed
};

// Whether the communicator's calls may be cut in pieces.
enum class Segmentation : std::uint8_t { kNone, kLongCalls };

class Engine {
 public:
  // `environment` and `connections` outlive the engine.
  Engine(std::uint32_t rank, std::uint32_t ranks, Environment& environment, Connections& connections,
         Segmentation segmentation);
  // Ends what is under way with kAborted.
  ~Engine();

  // Queues the operation. kInBackground: the progress thread takes care of it until somebody waits. kByCaller: somebody
  // will wait or test.
  enum class Progress : std::uint8_t { kByCaller, kInBackground };
  // Gives the operation its sequence number. On an error nothing was queued and no number was taken.
  Status submit(const std::shared_ptr<Operation>& operation, Progress progress);
  // How many more operations may be submitted at the moment.
  std::size_t room();
  std::uint32_t rank() const { return rank_; }
  const std::shared_ptr<EngineHandle>& handle() const { return handle_; }
  Status wait(Operation& operation);
  // Submits a collective that needs no messages and waits for it; quickest when nothing else is under way. `call` has
  // no sequence number yet. Releases `order`, the caller's lock around submissions, once the call has its place among
  // them. Nothing: something else is under way, or its plan has not run yet; submit an operation.
  enum class Way : std::uint8_t { kByMailbox, kByMemory };
  std::optional<Status> run_short(Way way, BoundPlan& plan, Call& call, std::int64_t timeout_ns,
                                  std::unique_lock<std::mutex>& order);
  bool test(Operation& operation);
  // The peer whose message is there for one of `probes` (receives, one from each peer at most); nothing if there is
  // none. If another thread drives the engine, waits until that thread's operation is done; never for a message.
  // Errors: the one that broke the communicator; those of opening connections.
  Result<std::optional<std::uint32_t>> look_for_message(std::vector<Transfer> probes);

  // Before `send`, whose end nobody will wait for: whether its receiver takes part. False: its process may have ended;
  // ask again. True also if another thread drives for so long that this one cannot look. Errors: as of a send to a rank
  // that takes part no more; the one that broke the communicator; those of opening connections.
  Result<bool> look_at_receiver(Transfer send);

  // From any thread.
  void abort() noexcept;
  // From any thread: this rank cannot take part any more. The same for its peers, and `error` for its own calls.
  void fail(const Error& error) noexcept;
  // After fail(): ends everything that is under way, so that the engine has none of the callers' buffers.
  void end_all() noexcept;
  // Waits for what is under way; refuses everything from now on. The first error among the operations waited for is
  // theirs alone and not returned. Errors: the one that broke the communicator before.
  Status finalize();
  // The error that made the communicator unusable, if one did.
  std::optional<Error> broken();
  // Whether the ranks' GPUs carry out calls on their memory, of which the engine sees nothing.
  void set_beside_devices(bool beside) { beside_devices_.store(beside, std::memory_order_relaxed); }
  // The number of the last collective that has ended well here; 0: none.
  std::uint64_t last_good() const { return last_good_.load(std::memory_order_acquire); }

 private:
  // When a drive ends: once an operation has ended; also when another thread wants to drive; after one poll.
  enum class Until : std::uint8_t { kDone, kWanted, kOnePoll };
  struct Ended {
    std::shared_ptr<Operation> operation;  // shared as in the queue; null: none
    std::optional<Error> error;
  };

  void drive(std::unique_lock<std::mutex>& lock, Operation& until_done);
  void background();
  bool nothing_to_do() const { return queue_.empty() && exchanges_.empty() && !between_queues_; }
  template <class Kind>
  void start_short(Kind& running, const Call& call, std::uint64_t& waited_until);
  void give_way(std::uint32_t submitted);
  bool run_past_queue(std::unique_lock<std::mutex>& lock, Operation& operation, const Call& call,
                      std::uint64_t& waited_until);
  Status end_short_by_exception(std::unique_lock<std::mutex>& lock, Operation& operation, Call& call) noexcept;
  void run(std::unique_lock<std::mutex>& lock, Until until) noexcept;
  Ended advance(std::unique_lock<std::mutex>& lock, Until until);
  Ended end_by_exception() noexcept;
  void announce_abort() noexcept;
  void give_back_numbers(const Operation& operation) noexcept;
  void renumber_probes();
  Ended break_off(const Error& broken);
  Ended drive_active(Until until, std::uint32_t submitted);
  Ended poll_active(bool& moved);
  std::optional<Error> start(Operation& operation);
  std::optional<Error> disagreement_at_the_end(const Operation& operation);
  std::optional<Error> own_abort(const Operation& operation);
  std::optional<Error> poll(Operation& operation, bool& moved);
  bool must_look_at_receivers(const Collective& collective) const;
  bool is_gone(std::uint32_t receiver);
  bool any_is_gone();
  bool sends_to_the_gone(const BoundPlan& plan);
  std::optional<Error> look_at_receivers(const Operation& operation);
  Ended look_around();
  std::optional<Error> look_at_start_condition(Operation& operation);
  std::string_view hint_for(const Operation& operation) const;
  bool falls_with_call(const Operation& operation) const { return operation.follows && last_error_.has_value(); }
  Error drop(const Operation& operation);
  void weigh(const Operation& operation, Error& error);
  static void excuse(Operation& operation, std::int64_t now_ns, std::int64_t away_ns);
  std::optional<Error> look_at(Operation& operation, std::int64_t now_ns);
  Ended pause(Idle& idle);
  void finish(Operation& operation, Status result) noexcept;
  void conclude(Operation& operation);
  void abandon(Operation& operation, ErrorScope scope);
  void record_begin(Operation& operation);
  void record_end(Operation& operation, const Status& result);
  void record_waits(std::int64_t now_ns);
  void remove(const Operation& operation);
  Error give_up(const Operation& operation, Diagnosis diagnosis);
  void wait_for_peers(std::int64_t latest_ns,
                      const std::function<bool(std::uint32_t peer, const PeerStatus& status)>& wanted);
  void take_back(Operation& operation, ErrorScope scope);
  void recall_all();

  std::uint32_t rank_;
  std::uint32_t ranks_;
  Environment& environment_;
  Recorder* const recorder_;  // the environment's; null: nothing is recorded
  Connections& connections_;
  const Segmentation segmentation_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> abort_unannounced_{false};  // this rank has given up, and its peers could not be told
  std::atomic<bool> beside_devices_{false};     // for words only
  const std::shared_ptr<EngineHandle> handle_;  // shared with streams, which may keep it for longer

  std::mutex mutex_;
  std::condition_variable changed_;  // driver left, operation done, queue filled, or ending
  std::deque<std::shared_ptr<Operation>>
      queue_;  // collectives; shared with the callers' Work, which may be dropped first
  std::vector<std::shared_ptr<Operation>> exchanges_;  // likewise
  std::uint64_t last_sequence_ = 0;
  std::atomic<std::uint64_t> last_good_{0};  // written by the driver
  PairNumbers numbers_;
  std::uint32_t probes_ = 0;                 // exchanges under way that only look
  bool driven_ = false;                      // some thread drives
  bool between_queues_ = false;              // it drives a short call or a look for a message, which no queue has
  std::atomic<std::uint32_t> wanting_{0};    // threads that wait to drive
  std::atomic<std::uint32_t> submitted_{0};  // operations, ever: the driver looks at what is new
  bool background_wanted_ = false;           // an operation was submitted that nobody may wait for
  bool ending_ = false;
  std::optional<Error> broken_;
  std::thread progress_thread_;
  std::vector<std::shared_ptr<Operation>> active_;  // the front collective and all exchanges; the driver's
  std::unique_ptr<PlanExecution> plan_execution_;   // of the plan used last; the driver's
  const BoundPlan* execution_plan_ = nullptr;
  // Where the transport has mailboxes; the driver's.
  std::unique_ptr<MailboxBoard> marks_;
  std::unique_ptr<InlineCollective> mailboxes_;
  std::unique_ptr<SingleCopyCollective> single_copy_;
  // Made before a short call begins, so that turning that call into a queued operation allocates nothing. The queue
  // then takes it over.
  std::shared_ptr<Operation> spare_;
  CollectiveTask* running_ = nullptr;  // the front collective: one of the three kinds; the driver's
  bool last_failed_ = false;           // the driver's
  std::optional<Error> last_error_;    // why the collective that ended last failed; the driver's
  std::int64_t broken_since_ns_ = 0;   // when the first operation ended that ended the communicator; the driver's
  std::uint32_t moves_ = 0;            // rounds of polls that did something; the driver's
  std::int64_t last_look_ns_ = 0;      // the driver's
  std::int64_t last_clock_ns_ = 0;     // when it looked at the clock; the driver's
  // When this rank last saw, before a send, that a peer lives, by peer; and when it looked at all of them before a call
  // by mailboxes. The driver's.
  std::vector<std::int64_t> seen_live_ns_;
  std::int64_t all_seen_ns_;
};

}  // namespace tutti
