// Costs: the duration of every step and every message of a plan on a network, if all chunks have the same length
// (set_bytes()). The durations are the terms of the recurrences of docs/decisions/0016-cost-model.md, computed in
// advance. simulate() creates a Costs, and its models (sweep, events, flows) use it. Used by one thread.
//
// All durations are vectors indexed by place: the place of a rank is its index within its class (model/programs.h). A
// vector has places() elements. That is one for each rank of a class, or fewer if rank r and the rank that is places()
// places after r in its class always do the same at the same time. Then only the first places() places are stored.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "model/network.h"
#include "model/parameters.h"
#include "model/programs.h"
#include "tutti/result.h"

namespace tutti {

// Approximate limit on the numbers (doubles) that a Costs, a sweep, or a run of the event engine may hold. 2^27 doubles
// take 1 GiB.
inline constexpr std::uint64_t kMostTimes = std::uint64_t{1} << 27;

struct CostOptions {
  Protocol protocol = Protocol::kSimple;
  std::uint32_t channels = 1;
  // Indexed by rank: its steps, and the messages that it sends except for their latency, take this many times as long.
  // Ranks that are not in the map have the factor 1.
  std::map<std::uint32_t, double> factors{};
};

// Durations of the messages of a connection, in microseconds, except gbytes_per_s. The vectors have the values of a
// message with one chunk; transfer_of() and hold_of() compute those of a message with a run of chunks (Step::run). Each
// vector is indexed by the place of the sender. A message on NVLink, PCIe or in memory is moved by the sender's
// channel. A message on the network is moved by a port (a NIC), which serves its messages one after the other, except
// in the model kFlows (model/port_queue.h).
struct MessageTimes {
  // time of the sender's channel for one message, without the time for its bytes
  std::vector<double> post;
  // time of the sender's channel to move the bytes of one chunk; 0 if a port moves them
  std::vector<double> move;
  // From the departure of a message to its arrival. The departure is the end of the sender's step, or later if the
  // message must wait for its port.
  std::vector<double> transfer;
  // How long the message occupies its port: the shortest time from its departure to the next departure at this port.
  // Minus infinity (kNever) if the message uses no port.
  std::vector<double> hold;
  // the part of `hold` that does not depend on the number of bytes
  std::vector<double> gap;
  // from the end of the receiver's step that frees a slot until the sender sees the credit for the slot; also the part
  // of `transfer` that does not depend on the number of bytes
  std::vector<double> latency;
  // the largest bandwidth of the message, in GB/s; in the model kFlows, it gets less if other messages on the links of
  // its route (model/network.h) do not leave it so much
  std::vector<double> gbytes_per_s;

  // `transfer` and `hold` of a message with `run` chunks. If a port moves the message, each chunk after the first one
  // adds the time of its bytes. Otherwise both are the same as with one chunk, because the time of the bytes is part of
  // the sender's step.
  double transfer_of(std::uint32_t run, std::size_t place) const { return transfer[place] + further(run, place); }
  double hold_of(std::uint32_t run, std::size_t place) const { return hold[place] + further(run, place); }

 private:
  // the time at the port for the bytes of all chunks after the first one; 0 if no port moves the message
  double further(std::uint32_t run, std::size_t place) const { return (run - 1) * (transfer[place] - latency[place]); }
};

class Costs {
 public:
  static constexpr double kNever = -std::numeric_limits<double>::infinity();

  // `programs` and `parameters` must outlive the object. `places` is the length of the vectors: a divisor of
  // programs.places(). Errors: kInvalidArgument if messages use a level for which the parameters have no costs;
  // kUnsupported if the connections or the different steps, times `places`, are so many that the object could hold more
  // than about kMostTimes numbers.
  static Result<Costs> create(const Programs& programs, const Network& network, const Parameters& parameters,
                              const CostOptions& options, std::uint32_t places);
  // Computes all durations for chunks of `bytes` bytes. `bytes` is an average over the chunks of a tile, so it need not
  // be a whole number.
  void set_bytes(double bytes);

  std::uint32_t places() const { return places_; }
  // The durations of the messages of a connection, which is an index into Programs::connections.
  const MessageTimes& message(std::uint32_t connection) const { return messages_[message_of_[connection]].times; }
  // The duration of a step, indexed by place. `number` is the index of the step in Programs::steps.
  const std::vector<double>& step(std::uint64_t number) const { return steps_[step_of_[number]].times; }
  // The parts of the duration of a step at one place, without the time in which the channel moves the bytes of its
  // messages. `first` is the fixed part, for the step itself and for posting each message. `second` is the longer
  // of the times to add and to copy. The whole duration, step(), is first + max(second, time to move the bytes).
  std::pair<double, double> still(std::uint64_t number, std::uint32_t place) const;
  // The rank that runs a thread (an index into Programs::threads) at a place.
  std::uint32_t rank(std::uint32_t thread, std::uint32_t place) const {
    return programs_->threads[thread].rank_class + place * programs_->classes;
  }
  bool uses_port(std::uint32_t connection, std::uint32_t place) const {
    return message(connection).hold[place] != kNever;
  }
  // How many times as long the work of this rank takes: 1, except for stragglers.
  double factor(std::uint32_t rank) const {
    if (options_.factors.empty()) return 1;
    const auto found = options_.factors.find(rank);
    return found == options_.factors.end() ? 1 : found->second;
  }

 private:
  // A class of messages that take equally long, because these four values are equal.
  struct MessageClass {
    // the level of the route, which is that of its slowest component
    Level level = Level::kMemory;
    // how many times as long the sender's work takes; 1, except for stragglers (Straggler)
    double factor = 1;
    // bandwidth of the narrowest link of the route; 0 if that is not slower than the bandwidth of the level in the
    // parameters
    double bound_gbytes_per_s = 0;
    // The part of the port's bandwidth that the simulated copy of the plan gets. 1 if the messages use no port, or if
    // shares_ is empty.
    double share = 1;

    bool operator<(const MessageClass& other) const {
      return std::tie(level, factor, bound_gbytes_per_s, share) <
             std::tie(other.level, other.factor, other.bound_gbytes_per_s, other.share);
    }
  };
  struct Message {
    // indexed by the place of the sender: index into kinds_
    std::vector<std::uint32_t> kinds;
    MessageTimes times;
  };
  struct StepClass {
    // the first step of this class, an index into Programs::steps
    std::uint64_t step = 0;
    // the thread of that step, an index into Programs::threads
    std::uint32_t thread = 0;
    std::vector<double> times;
  };

  Costs() = default;
  Status find_messages(const Network& network);
  void find_shares(const Network& network);
  void find_steps();
  const MessageCost& cost_of(Level level) const;
  double gbytes_per_s(const MessageClass& kind) const;
  double compute_us(const ProgramStep& step, double factor) const;

  const Programs* programs_ = nullptr;
  const Parameters* parameters_ = nullptr;
  CostOptions options_;
  std::uint32_t places_ = 1;
  double bytes_ = 0;
  // Indexed by rank: the part of the bandwidth of the rank's port that the simulated copy of the plan gets. Empty
  // if the plan has only one copy, or if the network has no ports. Then each of the copies gets an equal part.
  std::vector<double> shares_;
  std::vector<MessageClass> kinds_;
  std::vector<Message> messages_;
  // indexed by connection: index into messages_
  std::vector<std::uint32_t> message_of_;
  std::vector<StepClass> steps_;
  // indexed by step, as in Programs::steps: index into steps_
  std::vector<std::uint32_t> step_of_;
};

}  // namespace tutti
