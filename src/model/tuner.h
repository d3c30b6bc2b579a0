// Tuner: predicts the time of each algorithm of a collective on given machines, and sorts the algorithms by it. For
// algorithms that run a plan, the simulator computes the prediction from the plan
// (docs/decisions/0016-cost-model.md), so a new algorithm needs no code here. Ways to execute a call without a plan
// (mailboxes, direct access to the memory of others) have formulas, see ExecutionMethod. A value. Const functions
// may be called from any thread. The same inputs give the same result on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/network.h"
#include "model/parameters.h"
#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// How the runtime executes a call for which an algorithm was selected.
enum class ExecutionMethod : std::uint8_t {
  // runs the plan of the algorithm, step by step, with messages
  kByMessages,
  // Without the plan: each rank writes its value (if it has one) to its mailbox in shared memory, and reads the values
  // that it needs from the mailboxes of the others (decision 0010). Predicted time: mainly the latency of one cache
  // line, and the time to read the values. These are the values of all other ranks if the call reduces, or if every
  // rank gets all values; otherwise one value.
  kByMailbox,
  // Without the plan: each rank does a share of the work by loads and stores in the memory of the other ranks
  // (decision 0012). Predicted time: two synchronizations of all ranks, and the time to load and store the bytes.
  kByMemory,
  // as kByMemory, but by system calls (cross-memory attach) instead of loads and stores
  kByCalls,
};

struct Candidate {
  Algorithm algorithm = Algorithm::kAuto;
  ExecutionMethod way = ExecutionMethod::kByMessages;
  // For kByMessages: the length of the longest message in bytes (Override::chunk_bytes). 0: that of a slot.
  std::uint64_t chunk_bytes = 0;

  bool operator==(const Candidate&) const = default;
};

struct Prediction {
  Candidate candidate{};
  // predicted time of the same call with blocks of 8 bytes, or with its own blocks if they are shorter; at most the
  // total time
  double latency_us = 0;
  // the predicted time of the call itself, minus latency_us
  double bandwidth_us = 0;

  double total_us() const { return latency_us + bandwidth_us; }
  bool operator==(const Prediction&) const = default;
};

struct TunerOptions {
  Parameters parameters{};
  std::uint32_t ranks = 1;
  // the machine of each rank, as Collective::nodes; empty: one machine
  std::vector<std::uint32_t> nodes{};
  // True if the ranks of one machine communicate through shared memory. If false, they communicate as ranks of
  // different machines do, at the costs of Level::kNic, but they share the cores of their machine.
  bool memory = true;
};

// Largest communicator for which the tuner is used. The first call of each size waits until all its predictions are
// computed: 1 ms with 8 ranks, 100 ms with 64, and it would be 7 s with 512 (measured with nine algorithms of
// all_reduce on a busy machine). In larger communicators, fixed rules select the algorithm.
inline constexpr std::uint32_t kMostTunedRanks = 64;
// The tuner's algorithm replaces that of the fixed rules only if its predicted time is at most this fraction of the
// predicted time of the algorithm of the fixed rules. Smaller differences between predictions are not reliable
// (decision 0018).
inline constexpr double kWorthChanging = 0.85;
// Candidate::chunk_bytes is a multiple of this.
inline constexpr std::uint64_t kLeastChunkBytes = 4096;

class Tuner {
 public:
  // Errors: kUnsupported if there are more than kMostTunedRanks ranks, if the machines have different numbers of ranks,
  // or if ranks are not numbered machine by machine; those of Network::create().
  static Result<Tuner> create(const TunerOptions& options);

  // `bytes` is the length of one block of the call. Errors: those of find_generator() and simulate(); kUnsupported
  // if the candidate needs system calls that the parameters say are not possible, or if the predicted time is not
  // finite.
  Result<Prediction> predict(const Collective& collective, std::uint64_t bytes, Candidate candidate) const;
  // Returns the predictions of the candidates, the fastest first. Candidates for which predict() returns an error
  // are left out. Candidates with equal times stay in the given order.
  std::vector<Prediction> predict_all(const Collective& collective, std::uint64_t bytes,
                                      std::span<const Candidate> candidates) const;
  const Parameters& parameters() const { return parameters_; }

 private:
  Tuner(Parameters parameters, Network network, bool with_sockets)
      : parameters_(std::move(parameters)), network_(std::move(network)), with_sockets_(with_sockets) {}
  // number of ranks per core of a machine, but at least 1; 1 if the number of cores is unlimited
  double crowd() const;
  // Predicts the time of a call whose method is kByMessages, in microseconds. `bytes` is the length of one block.
  // `parameters` are those of the tuner, except that slot_bytes is the length of the longest message.
  Result<double> by_messages(const Generator& generator, std::uint64_t bytes, const Parameters& parameters) const;
  // With the same arguments, returns a lower bound of that time without launch_us, in microseconds: the work of the
  // busiest rank, or that of all ranks of a machine divided by its number of cores, if that is longer.
  double work_us(const Generator& generator, std::uint64_t bytes, const Parameters& parameters) const;
  // Predicts the methods other than kByMessages.
  double without_messages(const Collective& collective, std::uint64_t bytes, ExecutionMethod way) const;

  Parameters parameters_;
  Network network_;
  // True if the thread of a rank also reads messages from sockets, which takes time.
  bool with_sockets_;
};

std::string_view to_string(ExecutionMethod way);  // "messages", "mailboxes", "memory", "attached"

}  // namespace tutti
