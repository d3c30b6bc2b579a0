// One verification run: evaluates a plan over the domain of contributions, together with the race detection.
// Internal to this folder. run.cc schedules the steps, and equation.cc defines the effect of a step on values.
#pragma once

#include <cstdint>
#include <optional>
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

// The operands of each expression. Filled only for addition_order().
using ExpressionLog = std::unordered_map<std::uint64_t, std::vector<std::uint64_t>>;

struct Report {
  VerifyReport counts;
  std::vector<std::uint64_t> expressions;  // indexed by datum; only in collectives that add
};

// The state of one verification. It is a domain of evaluate.h that is bound to one thread at a time. A thread is
// one channel of one rank (structure.h).
//
// It has more than 40 methods and members. They are the state of one simulation in which every step may wake any
// thread, change any FIFO and end any call, so parts of it would have to refer to each other.
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
    // How many of the next step's receives have arrived, counted from the first one. It is kept, so that a message
    // does not cause all of them to be checked again.
    std::uint32_t receives_arrived = 0;
    bool queued = false;
    bool finished = false;  // finished the current call
  };
  struct Rank {
    std::uint32_t call = 0;
    std::uint32_t channels_left = 0;  // channels that have not finished the current call
    std::uint32_t published = 0;      // messages that were published by this rank and not yet received
    std::uint64_t outputs_written = 0;
  };
  struct Fifo {
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
    std::uint32_t next_send = 0;  // sent and received, modulo slots
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

  std::optional<Value> evaluate(const Channel& channel, const Step& step);
  bool add_operand(const Step& step, const Value& operand, std::uint32_t index, Value& sum);
  std::optional<Value> load(const Step& step);
  Value receive(std::uint16_t port);
  void send(std::uint16_t port, const Value& value);
  bool check_completion(const Step& step, Value& value, bool operand_complete);
  std::string output_fault(const Value& value, std::uint32_t chunk);
  void store(const Step& step, const Value& value, std::uint64_t tile);
  void store_output(const Step& step, const Value& value, std::uint64_t tile);
  std::uint32_t& written(std::uint64_t tile, std::uint32_t chunk) {
    return written_[first_output_[rank_] * options_.tiles + tile * outputs_of(rank_) + chunk];
  }

  const Wiring& wiring_;
  const VerifyOptions options_;
  ExpressionLog* log_;
  std::uint32_t slots_ = 1;
  Contributions contributions_;
  std::vector<std::uint8_t> rules_;  // indexed by message of a tile, see message_rules()
  std::optional<Races> races_;

  std::vector<Thread> threads_;
  std::vector<Rank> ranks_;
  std::vector<Fifo> fifos_;
  std::vector<Value> values_;              // connection x slots
  std::vector<Value> scratch_;             // rank x chunk
  std::vector<std::size_t> first_output_;  // indexed by rank: number of output chunks of all ranks before it
  std::vector<std::uint32_t> written_;     // rank x tile x output chunk: generation of the last write
  // indexed by datum; only in collectives that add. 0: not written yet.
  std::vector<std::uint64_t> expressions_;
  std::vector<std::vector<std::uint32_t>>
      // For each thread, the threads that name it in an After. Empty if there are none in the whole plan.
      waiters_;
  std::vector<std::uint32_t> ready_;    // threads to run, last in first out
  std::vector<std::uint32_t> drained_;  // ranks whose last published message was received by this step
  std::optional<Error> error_;
  VerifyReport counts_;

  // The thread that is being advanced.
  std::uint32_t thread_ = 0;
  std::uint32_t rank_ = 0;
  std::uint32_t first_port_ = 0;
  std::uint32_t generation_base_ = 0;
  std::uint32_t generation_ = 0;
  const Channel* program_ = nullptr;
};

}  // namespace tutti
