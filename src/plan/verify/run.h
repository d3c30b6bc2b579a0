// One verification run: a plan evaluated over the domain of contributions, with the race domain beside it. Internal to
// this folder; run.cc schedules, equation.cc says what a step does to values.
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

// Operands behind each expression: filled for addition_order() only.
using ExpressionLog = std::unordered_map<std::uint64_t, std::vector<std::uint64_t>>;

struct Report {
  VerifyReport counts;
  std::vector<std::uint64_t> expressions;  // of each datum, where data are added
};

// The state of one verification. It is the domain of evaluate.h, bound to one thread at a time.
class Run {
 public:
  Run(const Wiring& wiring, const VerifyOptions& options, ExpressionLog* log);

  Result<Report> to_the_end();

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
    std::uint32_t receives_there = 0;  // of the step to run next, from the first on: found once, not at each message
    bool queued = false;
    bool finished = false;  // this call
  };
  struct Rank {
    std::uint32_t call = 0;
    std::uint32_t channels_left = 0;  // that have not finished this call
    std::uint32_t published = 0;      // messages that read this rank's memory and were not received yet
    std::uint64_t outputs_written = 0;
  };
  struct Fifo {
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
    std::uint32_t next_send = 0;  // received and sent, modulo slots
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
  bool receives_there(Thread& state);
  void run_thread(std::uint32_t thread);
  void end_call_if_done(std::uint32_t rank);
  void begin_call(std::uint32_t rank);
  Error missing_output(std::uint32_t rank) const;
  Error deadlock() const;
  std::string what_it_waits_for(std::uint32_t thread);

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
  std::vector<std::uint8_t> rules_;  // of each message of a tile, see races.h
  std::optional<Races> races_;

  std::vector<Thread> threads_;
  std::vector<Rank> ranks_;
  std::vector<Fifo> fifos_;
  std::vector<Value> values_;               // connection x slots
  std::vector<Value> scratch_;              // rank x chunk
  std::vector<std::size_t> first_output_;   // by rank: output chunks of all ranks before it
  std::vector<std::uint32_t> written_;      // rank x tile x output chunk: generation of the last write
  std::vector<std::uint64_t> expressions_;  // of each datum, where data are added; 0: not written yet
  std::vector<std::vector<std::uint32_t>>
      waiters_;                         // threads that name this thread in an After; empty where no one does
  std::vector<std::uint32_t> ready_;    // threads to run, last in first out
  std::vector<std::uint32_t> drained_;  // ranks whose last published message this step received
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
