// Tuner: predicts the time of each algorithm of a collective on this machine, and sorts them. The simulator
// computes the predictions (docs/decisions/0016-cost-model.md), so a new algorithm is supported automatically.
// Methods of the runtime that do not use a plan (mailboxes, each other's memory) have formulas of their own,
// described at ExecutionMethod. A value. Const functions may be called from any thread. The same inputs give the
// same result on every rank.
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

// How the runtime executes a call with this algorithm.
enum class ExecutionMethod : std::uint8_t {
  kByMessages,  // runs the plan, step by step
  // Every rank writes its value to its mailbox, and all ranks read all values (decision 0010). This takes the
  // latency of one cache line, and p - 1 values are read.
  kByMailbox,
  // Each rank does a share of the work directly in the memory of the others (decision 0012). This takes two
  // synchronizations, and the time for the bytes.
  kByMemory,
  kByCalls,  // the same by system calls
};

struct Candidate {
  Algorithm algorithm = Algorithm::kAuto;
  ExecutionMethod way = ExecutionMethod::kByMessages;
  // Longest chunk of kByMessages. 0: as long as a slot.
  std::uint64_t chunk_bytes = 0;

  bool operator==(const Candidate&) const = default;
};

struct Prediction {
  Candidate candidate{};
  double latency_us = 0;    // time of the same call with almost no bytes
  double bandwidth_us = 0;  // additional time for the bytes

  double total_us() const { return latency_us + bandwidth_us; }
  bool operator==(const Prediction&) const = default;
};

struct TunerOptions {
  Parameters parameters{};
  std::uint32_t ranks = 1;
  std::vector<std::uint32_t> nodes{};  // as in Collective
  // The ranks of one machine share memory. False: they communicate as machines do, but share the cores.
  bool memory = true;
};

// Largest communicator for which the tuner is used. The first call of a size waits for its predictions: 1 ms with
// 8 ranks, 100 ms with 64, 7 s with 512 (nine algorithms of all_reduce, on a busy machine). Above the limit, fixed
// rules are used.
inline constexpr std::uint32_t kMostTunedRanks = 64;
// An earlier choice is only replaced by another one if the predicted time of the new one is at most this fraction
// of the old one's. Smaller differences between predictions are not reliable (decision 0018).
inline constexpr double kWorthChanging = 0.85;
// shortest chunk of a candidate; longer ones are multiples of it
inline constexpr std::uint64_t kLeastChunkBytes = 4096;

class Tuner {
 public:
  // Errors: kUnsupported if there are too many ranks, or if the machines do not have equal numbers of consecutive
  // ranks.
  static Result<Tuner> create(const TunerOptions& options);
  // The same, with a network given by the caller.
  static Result<Tuner> create(const Parameters& parameters, const Network& network);

  // `bytes` is the length of one block. Errors: those of find_generator() and simulate().
  Result<Prediction> predict(const Collective& collective, std::uint64_t bytes, Candidate candidate) const;
  // Returns the predictions of all candidates that can be predicted, the fastest first. Equal ones stay in their
  // order.
  std::vector<Prediction> predict_all(const Collective& collective, std::uint64_t bytes,
                                      std::span<const Candidate> candidates) const;
  const Parameters& parameters() const { return parameters_; }

 private:
  // How a rank executes its channels: each by a thread block of a GPU, or all by one thread, which may also read
  // its messages from sockets.
  enum class Rank : std::uint8_t { kBlocks, kThread, kThreadWithSockets };
  Tuner(Parameters parameters, Network network, Rank rank)
      : parameters_(std::move(parameters)), network_(std::move(network)), rank_(rank) {}
  double crowd() const;  // number of ranks of one machine per core, at least 1
  // `parameters` are those of the tuner, except that slot_bytes is the length of a chunk.
  Result<double> by_messages(const Generator& generator, std::uint64_t bytes, const Parameters& parameters) const;
  double work_us(const Generator& generator, std::uint64_t bytes, const Parameters& parameters) const;
  double without_messages(const Collective& collective, std::uint64_t bytes, ExecutionMethod way) const;

  Parameters parameters_;
  Network network_;
  Rank rank_;
};

std::string_view to_string(ExecutionMethod way);  // "messages", "mailboxes", "memory", "attached"

}  // namespace tutti
