// What every step and every message of a plan costs on a network, for messages of one length: decision 0016's
// recurrences, evaluated beforehand. Made by simulate(), read by its engines. One thread.
//
// All durations are vectors over places (model/programs.h). There are as many places as ranks of a class, or fewer:
// where ranks r and r + period do the same at the same time, places beyond the period are left out.
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

// Numbers that one simulation may hold: 1 GiB.
inline constexpr std::uint64_t kMostTimes = std::uint64_t{1} << 27;

struct CostOptions {
  Protocol protocol = Protocol::kSimple;
  std::uint32_t channels = 1;
  std::map<std::uint32_t, double> factors{};  // of ranks that are slower than others
};

// Of the messages of a connection, by the place of the sender. Microseconds.
struct MessageTimes {
  std::vector<double> post;          // the sender's channel, beside the bytes
  std::vector<double> move;          // the sender's channel, with the bytes; 0 where an engine moves them
  std::vector<double> transfer;      // from the sender's end, or the departure, to the receiver's sight
  std::vector<double> hold;          // from one departure by the port to the next; minus infinity where no port is used
  std::vector<double> gap;           // of that, beside the bytes
  std::vector<double> latency;       // of a credit on its way back
  std::vector<double> gbytes_per_s;  // at most
};

class Costs {
 public:
  static constexpr double kNever = -std::numeric_limits<double>::infinity();

  // All outlive it. `places`: how many are told apart. Errors: kInvalidArgument where the parameters lack a level that
  // messages pass; kUnsupported for more than kMostTimes.
  static Result<Costs> create(const Programs& programs, const Network& network, const Parameters& parameters,
                              const CostOptions& options, std::uint32_t places);
  // All messages are so long from now on. Each channel's share; a mean, so not a whole number.
  void set_bytes(double bytes);

  std::uint32_t places() const { return places_; }
  const MessageTimes& message(std::uint32_t connection) const { return messages_[message_of_[connection]].times; }
  // Of a step, by number in Programs::steps.
  const std::vector<double>& step(std::uint64_t number) const { return steps_[step_of_[number]].times; }
  // The same, without the time in which the channel moves bytes: {others, adding and copying}.
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
  // One kind of message: level, what its rank and its port make of it.
  struct Kind {
    Level level = Level::kMemory;
    double factor = 1;
    double bound_gbytes_per_s = 0;  // of the links; 0: none
    double share = 1;               // of the port

    bool operator<(const Kind& other) const {
      return std::tie(level, factor, bound_gbytes_per_s, share) <
             std::tie(other.level, other.factor, other.bound_gbytes_per_s, other.share);
    }
  };
  struct Message {
    std::vector<std::uint32_t> kinds;  // by place
    MessageTimes times;
  };
  struct StepKind {
    std::uint64_t step = 0;    // the first of these
    std::uint32_t thread = 0;  // its thread
    std::vector<double> times;
  };

  Costs() = default;
  Status find_messages(const Network& network);
  void find_shares(const Network& network);
  void find_steps();
  const MessageCost& cost_of(Level level) const;
  double gbytes_per_s(const Kind& kind) const;
  double compute_us(const ProgramStep& step, double factor) const;

  const Programs* programs_ = nullptr;
  const Parameters* parameters_ = nullptr;
  CostOptions options_;
  std::uint32_t places_ = 1;
  double bytes_ = 0;
  std::vector<double> shares_;  // of each rank's port, of one copy of the plan; empty: all alike
  std::vector<Kind> kinds_;
  std::vector<Message> messages_;
  std::vector<std::uint32_t> message_of_;  // by connection: index into messages_
  std::vector<StepKind> steps_;
  std::vector<std::uint32_t> step_of_;  // by step: index into steps_
};

}  // namespace tutti
