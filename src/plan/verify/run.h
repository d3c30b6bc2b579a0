// One verification run: runs a plan with sets of ranks as values (contributions.h), together with the race
// detection (races.h). Internal to this folder. run.cc schedules the steps, and equation.cc defines the effect of
// a step on values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/collective.h"
#include "plan/evaluate.h"
#include "plan/verify/contributions.h"
#include "plan/verify/races.h"
#include "plan/verify/structure.h"
#include "plan/verify/verify.h"

namespace tutti {

// Value::expression of a sum -> the expressions of its operands. The expression of one rank's contribution is mapped to
// the number of this rank. Filled only for addition_order().
using ExpressionLog = std::unordered_map<std::uint64_t, std::vector<std::uint64_t>>;

struct Report {
  VerifyReport counts;
  // Indexed by datum (plan/collective.h): Value::expression of the result. All 0 in collectives that do not add.
  std::vector<std::uint64_t> expressions;
};

// The state of one verification. A thread is one channel of one rank (structure.h). Run is the domain
// (plan/evaluate.h) of all threads: run_thread() sets the members at the end of the class to one thread before it
// advances it.
//
// The class has more than 40 methods and members. It is not divided, because every step may wake any thread,
// change any FIFO and end any call, so the parts would have to refer to each other.
class Run {
 public:
  Run(const Wiring& wiring, const VerifyOptions& options, ExpressionLog* log);

  Result<Report> run_all_calls();

  bool receive_ready(std::uint16_t port) const {
    const Fifo& fifo = fifos_[connection_of(port)];
    return !error_ && fifo.sent != fifo.received;
  }
  bool send_ready(std::uint16_t port) const {
    const std::uint32_t c = connection_of(port);
    return !error_ && fifos_[c].sent - fifos_[c].received < slots_ && (!options_.windows || push_granted(c));
  }
  bool reached(std::uint32_t channel, std::uint32_t step, std::uint64_t tile) const {
    const Thread& other = threads_[wiring_.first_thread[rank_] + channel];
    return other.cursor.tile > tile || (other.cursor.tile == tile && other.cursor.step > step);
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t tile);

 private:
  struct Thread {
    Cursor cursor;
    // How many messages of the next step have arrived, counted from its first receive up to the first missing one.
    // Stored, so that a new message does not cause all receives of the step to be checked again.
    std::uint32_t receives_arrived = 0;
    bool queued = false;
    bool finished = false;  // the thread has finished the current call
  };
  struct Rank {
    std::uint32_t call = 0;
    std::uint32_t channels_left = 0;  // number of channels that have not finished the current call
    // With windows: number of messages of this rank that may be published and were not received yet. The call ends
    // only at 0.
    std::uint32_t published = 0;
    std::uint64_t outputs_written = 0;
  };
  struct Fifo {
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
    std::uint32_t next_send = 0;  // next_send and next_receive are `sent` and `received` modulo the number of slots
    std::uint32_t next_receive = 0;
  };

  std::size_t outputs_of(std::uint32_t rank) const { return first_output_[rank + 1] - first_output_[rank]; }
  std::uint32_t connection_of(std::uint16_t port) const { return wiring_.port_connection[first_port_ + port]; }
  bool push_granted(std::uint32_t connection) const;
  void wake(std::uint32_t thread);
  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  void fail_here(const Step& step, const std::string& what);
  std::uint32_t step_index(const Step& step) const { return static_cast<std::uint32_t>(&step - &program_->steps[0]); }

  void prepare_waiters();
  Status start();
  bool receives_arrived(Thread& state);
  void run_thread(std::uint32_t thread);
  void end_call_if_done(std::uint32_t rank);
  void begin_call(std::uint32_t rank);
  Error missing_output(std::uint32_t rank) const;
  Error deadlock() const;
  std::string describe_wait(std::uint32_t thread);

  // evaluate() returns the value of one equation of the step. `equation`: its index in the run (Step::run).
  std::optional<Value> evaluate(const Channel& channel, const Step& step, std::uint32_t equation);
  bool add_operand(const Step& step, const Value& operand, std::uint32_t index, Value& sum);
  std::optional<Value> load(const Step& step, const Slice& source);
  // received() returns value `i` of the oldest message that the port has not received yet. release() receives that
  // message, which frees its slot.
  const Value& received(std::uint16_t port, std::uint32_t i) const;
  void release(std::uint16_t port);
  void send(std::uint16_t port, std::span<const Value> message);
  // Chunk i of the run that begins with `first`, a slice of this rank.
  Slice nth(const Slice& first, std::uint32_t i) const {
    return i == 0 ? first : chunk_of_run(first, i, space_chunks(wiring_.plan->shape, rank_, first.space));
  }
  bool check_completion(const Step& step, Value& value, bool operand_complete);
  std::string output_fault(const Value& value, std::uint32_t chunk);
  void store(const Step& step, const Slice& sink, const Value& value, std::uint64_t tile);
  void store_output(const Step& step, std::uint32_t chunk, const Value& value, std::uint64_t tile);
  std::uint32_t& written(std::uint64_t tile, std::uint32_t chunk) {
    return written_[first_output_[rank_] * options_.tiles + tile * outputs_of(rank_) + chunk];
  }

  const Wiring& wiring_;
  const VerifyOptions options_;
  ExpressionLog* log_;
  std::uint32_t slots_ = 1;
  Contributions contributions_;
  std::vector<std::uint8_t> rules_;  // indexed by message of a tile; see message_rules()
  std::optional<Races> races_;

  std::vector<Thread> threads_;
  std::vector<Rank> ranks_;
  std::vector<Fifo> fifos_;
  // connection x slot: the first value of the message in the slot, which was sent and not received yet
  std::vector<Value> values_;
  // connection x slot: the further values of that message. Empty if PlanShape::longest_run is 1, because every message
  // of the plan has one value then.
  std::vector<std::vector<Value>> more_values_;
  std::vector<Value> step_values_;         // the values of the equations of the step that runs
  std::vector<Value> scratch_;             // rank x scratch chunk: the value that was stored last
  std::vector<std::size_t> first_output_;  // indexed by rank: number of output chunks of all lower ranks
  // rank x tile x output chunk: generation (Value::generation) of the last write
  std::vector<std::uint32_t> written_;
  // Indexed by datum (plan/collective.h): Value::expression of the first result that was stored, with which all others
  // must agree. 0: no result was stored yet.
  std::vector<std::uint64_t> expressions_;
  // Indexed by thread: the threads that wait for its steps (After). Empty if no step of the plan waits.
  std::vector<std::vector<std::uint32_t>> waiters_;
  std::vector<std::uint32_t> ready_;  // threads that may be able to run; the last one added is taken first
  // The ranks whose last outstanding published message the current step has received.
  std::vector<std::uint32_t> drained_;
  std::optional<Error> error_;
  VerifyReport counts_;

  // The thread that is being advanced. The members below describe this thread and the step that it runs.
  std::uint32_t thread_ = 0;
  std::uint32_t rank_ = 0;
  std::uint32_t first_port_ = 0;
  std::uint32_t generation_base_ = 0;
  std::uint32_t generation_ = 0;
  const Channel* program_ = nullptr;
};

}  // namespace tutti
