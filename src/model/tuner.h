// The tuner: what each algorithm of a collective would take here, and which is best. Predictions are the simulator's
// (docs/decisions/0016-cost-model.md), so an algorithm that is added is weighed at once; what the runtime does without
// a plan (mailboxes, each other's memory) has a closed form of its own, told at Way. A value; const functions from any
// thread. The same inputs give the same choice on every rank.
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

// How the runtime carries a call out that the algorithm stands for.
enum class Way : std::uint8_t {
  kByMessages,  // the plan, step by step
  kByMailbox,   // every rank shows its value, all read all (decision 0010): a line's way, p - 1 values read
  kByMemory,    // ranks work in each other's memory by shares (decision 0012): two looks at each other, and the bytes
  kByCalls,     // the same by system calls
};

struct Contender {
  Algorithm algorithm = Algorithm::kAuto;
  Way way = Way::kByMessages;
  std::uint64_t chunk_bytes = 0;  // longest chunk, of kByMessages; 0: as long as a slot holds

  bool operator==(const Contender&) const = default;
};

struct Prediction {
  Contender contender{};
  double latency_us = 0;    // of the same call with next to no bytes
  double bandwidth_us = 0;  // what the bytes add

  double total_us() const { return latency_us + bandwidth_us; }
  bool operator==(const Prediction&) const = default;
};

struct TunerOptions {
  Parameters parameters{};
  std::uint32_t ranks = 1;
  std::vector<std::uint32_t> nodes{};  // as in Collective
  bool memory = true;  // ranks of one machine share memory; false: they talk as machines do, but share its cores
};

// Of a communicator. The first call of a size waits for its predictions: 1 ms with 8 ranks, 100 with 64, 7 s with 512
// (nine algorithms of all_reduce, on a busy machine). The rules of thumb take over.
inline constexpr std::uint32_t kMostTunedRanks = 64;
// A choice that is made already is left for another one that is predicted to take this part of its time: nearer than
// that, predictions are not to be trusted (decision 0018).
inline constexpr double kWorthChanging = 0.85;
inline constexpr std::uint64_t kLeastChunkBytes = 4096;  // of a contender; also what they are multiples of

class Tuner {
 public:
  // Errors: kUnsupported where ranks are not dealt to equal machines in blocks, or are too many.
  static Result<Tuner> create(const TunerOptions& options);
  // The same on a network of the caller's.
  static Result<Tuner> create(const Parameters& parameters, const Network& network);

  // `bytes`: of one block. Errors: find_generator()'s and simulate()'s.
  Result<Prediction> predict(const Collective& collective, std::uint64_t bytes, Contender contender) const;
  // Of all that can be predicted, the quickest first; of equal ones the first contender.
  std::vector<Prediction> predict_all(const Collective& collective, std::uint64_t bytes,
                                      std::span<const Contender> contenders) const;
  const Parameters& parameters() const { return parameters_; }

 private:
  // Whether a rank is one thread that does all its channels' work, and whether it reads its messages from sockets.
  enum class Rank : std::uint8_t { kBlocks, kThread, kThreadWithSockets };
  Tuner(Parameters parameters, Network network, Rank rank)
      : parameters_(std::move(parameters)), network_(std::move(network)), rank_(rank) {}
  double crowd() const;  // ranks of one machine for each of its cores, at least 1
  // `parameters`: these, but for slot_bytes, which are a chunk's.
  Result<double> by_messages(const Generator& generator, std::uint64_t bytes, const Parameters& parameters) const;
  double work_us(const Generator& generator, std::uint64_t bytes, const Parameters& parameters) const;
  double without_messages(const Collective& collective, std::uint64_t bytes, Way way) const;

  Parameters parameters_;
  Network network_;
  Rank rank_;
};

std::string_view to_string(Way way);  // "messages", "mailboxes", "memory", "attached"

}  // namespace tutti
