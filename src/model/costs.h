// Costs: the duration of every step and every message of a plan on a network, for messages of one length. These
// are the terms of the recurrences of decision 0016, computed in advance. simulate() creates a Costs, and its
// engines read it. Used by one thread.
//
// All durations are vectors indexed by place: the place of a rank is its index within its class
// (model/programs.h). The vectors have one element for each rank of a class, or fewer: if ranks r and r + period
// always do the same at the same time, only the places of the first period are stored.
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

// Limit on the numbers that one simulation may hold. It corresponds to 1 GiB.
inline constexpr std::uint64_t kMostTimes = std::uint64_t{1} << 27;

struct CostOptions {
  Protocol protocol = Protocol::kSimple;
  std::uint32_t channels = 1;
  std::map<std::uint32_t, double> factors{};  // slowdown of the ranks that are slower than the others
};

// Durations of the messages of a connection, indexed by the place of the sender. In microseconds.
struct MessageTimes {
  std::vector<double> post;  // time of the sender's channel for a message, without its bytes
  // time of the sender's channel to move the bytes; 0 if an engine (a NIC) moves them
  std::vector<double> move;
  std::vector<double> transfer;  // from the end of the sender's work, or the departure, to the arrival
  // From one departure at the port to the next. Minus infinity (kNever) if the message uses no port.
  std::vector<double> hold;
  std::vector<double> gap;           // the part of `hold` that does not depend on the bytes
  std::vector<double> latency;       // latency of a credit on its way back
  std::vector<double> gbytes_per_s;  // upper bound
};

class Costs {
 public:
  static constexpr double kNever = -std::numeric_limits<double>::infinity();

  // All arguments must outlive the object. `places`: length of the vectors. Errors: kInvalidArgument if messages
  // use a level for which the parameters have no costs; kUnsupported for more than kMostTimes numbers.
  static Result<Costs> create(const Programs& programs, const Network& network, const Parameters& parameters,
                              const CostOptions& options, std::uint32_t places);
  // Computes all durations for messages of this length. It is one channel's share, and an average, so it need not
  // be a whole number.
  void set_bytes(double bytes);

  std::uint32_t places() const { return places_; }
  const MessageTimes& message(std::uint32_t connection) const { return messages_[message_of_[connection]].times; }
  // The duration of a step, indexed by place. `number` is the index in Programs::steps.
  const std::vector<double>& step(std::uint64_t number) const { return steps_[step_of_[number]].times; }
  // The same duration without the time in which the channel moves bytes. Returns {fixed part, adding and copying}.
  std::pair<double, double> still(std::uint64_t number, std::uint32_t place) const;
  std::uint32_t rank(std::uint32_t thread, std::uint32_t place) const {
    return programs_->threads[thread].rank_class + place * programs_->classes;
  }
  bool uses_port(std::uint32_t connection, std::uint32_t place) const {
    return message(connection).hold[place] != kNever;
  }
  double factor(std::uint32_t rank) const {
    if (options_.factors.empty()) return 1;
    const auto found = options_.factors.find(rank);
    return found == options_.factors.end() ? 1 : found->second;
  }

 private:
  // A class of messages with the same duration: level, slowdown of the sender, and effect of links and port.
  struct MessageClass {
    Level level = Level::kMemory;
    double factor = 1;
    double bound_gbytes_per_s = 0;  // bandwidth limit of the links; 0: no limit
    double share = 1;               // share of the port's bandwidth

    bool operator<(const MessageClass& other) const {
      return std::tie(level, factor, bound_gbytes_per_s, share) <
             std::tie(other.level, other.factor, other.bound_gbytes_per_s, other.share);
    }
  };
  struct Message {
    std::vector<std::uint32_t> kinds;  // indexed by place: index into kinds_
    MessageTimes times;
  };
  struct StepClass {
    std::uint64_t step = 0;    // the first step of this class
    std::uint32_t thread = 0;  // thread of that step
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
  // The share of one copy of the plan in each rank's port. Empty if all ports are shared equally.
  std::vector<double> shares_;
  std::vector<MessageClass> kinds_;
  std::vector<Message> messages_;
  std::vector<std::uint32_t> message_of_;  // by connection: index into messages_
  std::vector<StepClass> steps_;
  std::vector<std::uint32_t> step_of_;  // by step: index into steps_
};

}  // namespace tutti
