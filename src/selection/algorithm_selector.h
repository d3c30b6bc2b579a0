// What Algorithm::kAuto stands for, the same on every rank: the user's rule, else what the tuner predicts to be
// quickest, else a rule of thumb.
//
// Where all ranks share memory the rules of thumb stay: they were measured, and whether a call can use memory in place
// shows only once all ranks have come. Across machines and over sockets they were reasoned, and the tuner decides where
// it sees a clear gain.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "model/tuner.h"
#include "plan/plan.h"
#include "selection/tuning.h"
#include "transports/transport.h"

namespace tutti::detail {

struct SelectionQuery {
  std::uint64_t bytes = 0;     // of one block
  bool in_rank_order = false;  // the ranks must be combined in their order
  bool memory = true;          // ranks of one machine share memory
  bool on_device = false;      // GPUs carry the call out, of which the tuner's costs know nothing
  bool attached =
      false;  // ranks use each other's memory in this call, registered or not; for a AlgorithmSelector: they may
};

// The rule of thumb. collective.nodes tells how many machines there are. A pure function.
Algorithm choose_algorithm(const Collective& collective, const SelectionQuery& choice);

// What a communicator's selector goes by; the same on all of its ranks.
struct SelectorOptions {
  std::shared_ptr<const Tuning> tuning{};  // shared by the communicators of a fabric; null: rules of thumb only
  std::uint32_t ranks = 1;
  std::vector<std::uint32_t> nodes{};  // as in Collective
  std::uint32_t cores = 0;             // of rank 0's machine; 0: not known, one for each rank
  bool memory = true;
  bool mailboxes = false;
  Attachment attachment = Attachment::kNone;
  // Of the job's connections, whatever the tuning was measured with; 0: the tuning's.
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;
};

// Of predict(): where one more comes, all are forgotten. About 100 KB.
inline constexpr std::size_t kMostKeptPredictions = 1024;

// What a call takes.
struct Selection {
  Algorithm algorithm = Algorithm::kAuto;
  std::uint32_t chunk_bytes = 0;  // the longest chunk's; 0: as long as a slot holds

  bool operator==(const Selection&) const = default;
};

class AlgorithmSelector {
 public:
  explicit AlgorithmSelector(SelectorOptions options) : options_(std::move(options)) {}

  enum class By : std::uint8_t { kRuleOfThumb, kOverride, kTuner };
  struct Decision {
    Algorithm algorithm = Algorithm::kDirect;
    std::uint32_t chunk_bytes = 0;  // as in Selection
    By by = By::kRuleOfThumb;
    Algorithm rule_of_thumb = Algorithm::kDirect;
    std::string reason{};                   // for people
    std::vector<Prediction> predictions{};  // the quickest first; empty where there is no tuner
  };

  // One thread at a time. choice.memory is of no account: it is the communicator's. After the first call of a kind and
  // of a power of two of bytes a look at a table. The root is of no account.
  Selection choose(const Collective& collective, const SelectionQuery& choice);
  // Choices are made for all calls up to the next power of two, as one of that length.
  static std::uint64_t decided_as(std::uint64_t bytes);
  // The same with all predictions, and slow.
  Decision explain(Collective collective, SelectionQuery choice);
  // In microseconds; nothing where the tuner cannot say. Simulated once and then looked up, by kind, algorithm,
  // chunk and exact bytes; the root is of no account.
  std::optional<double> predict(const Collective& collective, const SelectionQuery& choice, Selection chosen);
  // Predictions that were simulated since this was made, so that a test sees what was not.
  std::uint64_t simulated() const { return simulated_; }

 private:
  // kAuto: not chosen yet. By the number of bits of (bytes - 1): the limits of mailboxes and of attached memory are
  // powers of two, and belong to the shorter side.
  using Buckets = std::array<Selection, 65>;
  const Tuner* tuner();
  SelectionQuery complete(const Collective& collective, SelectionQuery choice) const;
  Way way_of(const Collective& collective, const SelectionQuery& choice, Algorithm algorithm) const;
  std::vector<Contender> contenders(const Collective& collective, const SelectionQuery& choice) const;
  std::optional<Selection> overridden(const Collective& collective, const SelectionQuery& choice) const;
  bool tuner_decides() const { return !options_.memory || !options_.nodes.empty(); }

  SelectorOptions options_;
  std::optional<Tuner> tuner_;
  bool looked_ = false;                     // whether there is a tuner
  std::map<std::uint32_t, Buckets> table_;  // by kind and by what else a choice depends on
  using PredictionKey = std::tuple<CollectiveKind, Algorithm, Way, std::uint32_t, std::uint64_t>;
  std::map<PredictionKey, std::optional<double>> predicted_;  // at most kMostKeptPredictions
  std::uint64_t simulated_ = 0;
};

}  // namespace tutti::detail
