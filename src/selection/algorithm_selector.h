// AlgorithmSelector: replaces Algorithm::kAuto by an algorithm, in the same way on every rank. It uses the user's rule
// (TUTTI_TUNE) if one applies. Otherwise it uses the rule of thumb, unless the tuner predicts that another algorithm is
// clearly faster (kWorthChanging in model/tuner.h).
//
// If all ranks share memory, the tuner does not replace the rules of thumb, because a rank learns only after all ranks
// have entered a call whether the call can use their buffers directly. The sizes in these rules are MachineChoices,
// which `tutti tune` measures. The rules for several machines and for sockets are mostly estimates, so the tuner
// replaces them if it predicts a clear gain.
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
#include "plan/machine_choices.h"
#include "plan/plan.h"
#include "selection/tuning.h"
#include "transports/transport.h"

namespace tutti::detail {

// The GPUs that carry a call out: none, because the host does; one, which all ranks share; or several.
enum class GpuUse : std::uint8_t { kNone, kOneGpu, kSeveralGpus };

// The properties of a call that the selection depends on.
struct SelectionQuery {
  std::uint64_t bytes = 0;     // length of one block
  bool in_rank_order = false;  // the operation must combine the ranks' inputs in rank order
  bool memory = true;          // ranks of one machine share memory
  // If GPUs carry the call out, the rules of thumb for GPUs apply, and not the tuner, because the tuner's costs are
  // those of the host.
  GpuUse gpus = GpuUse::kNone;
  // Ranks read and write each other's buffers in this call, even if these are not registered. In a query to an
  // AlgorithmSelector, true only means that the arguments of the call permit such access; the selector itself checks
  // whether the system permits it and whether the call is long enough.
  bool attached = false;
  // If all ranks share memory, an all_reduce on the host uses one_shot up to this length (MachineChoices), unless there
  // are too many ranks for it.
  std::uint64_t one_shot_bytes = default_choices(2, 0).one_shot_bytes;
};

// Selects by the rules of thumb. The number of machines follows from collective.nodes. Pure function.
Algorithm choose_algorithm(const Collective& collective, const SelectionQuery& query);

// The settings of one communicator's selector. They are the same on all of its ranks.
struct SelectorOptions {
  // Shared by the communicators of a JobContext. If null, only the rules of thumb are used.
  std::shared_ptr<const Tuning> tuning{};
  std::uint32_t ranks = 1;
  std::vector<std::uint32_t> nodes{};  // the machine of each rank; empty if all ranks are on one machine
  // Environment::cores: the number of cores on which the ranks of rank 0's machine may run. 0 if it is unknown; the
  // selector then assumes that each rank has a core of its own.
  std::uint32_t cores = 0;
  // How calls inside a machine are carried out.
  MachineChoices choices = default_choices(2, 0);
  bool memory = true;
  bool mailboxes = false;
  Attachment attachment = Attachment::kNone;
  // Number of slots of a connection, and bytes of a slot. They replace the values with which the tuning was measured.
  // 0: the values of the tuning are used.
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;
};

// Maximum number of results that predict() stores. Before one more is stored, all are dropped. They take about 100 KB.
inline constexpr std::size_t kMaxStoredPredictions = 1024;

// The selected algorithm for a call.
struct Selection {
  Algorithm algorithm = Algorithm::kAuto;
  // The length of the longest message in bytes; with one chunk per message, also that of the longest chunk. 0: the
  // length of a slot.
  std::uint32_t chunk_bytes = 0;

  bool operator==(const Selection&) const = default;
};

class AlgorithmSelector {
 public:
  explicit AlgorithmSelector(SelectorOptions options) : options_(std::move(options)) {}

  enum class By : std::uint8_t { kRuleOfThumb, kOverride, kTuner };
  struct Decision {
    Algorithm algorithm = Algorithm::kDirect;
    std::uint32_t chunk_bytes = 0;  // as Selection::chunk_bytes
    By by = By::kRuleOfThumb;
    Algorithm rule_of_thumb = Algorithm::kDirect;
    std::string reason{};                   // text for people: why this algorithm was selected
    std::vector<Prediction> predictions{};  // the fastest first; empty if there are none
  };

  // Selects the algorithm of a call. Only one thread at a time may call this. query.memory and query.one_shot_bytes are
  // ignored, because the communicator's settings are used. The root does not affect the result. If the tuner decides,
  // the first call for a collective type and a power of two of bytes may run the tuner, and later calls look the result
  // up in a table.
  Selection choose(const Collective& collective, const SelectionQuery& query);
  // Whether all ranks are on one machine and share memory.
  bool shares_memory() const { return !tuner_decides(); }
  // Whether a rule of TUTTI_TUNE determines the algorithm of the call. Pure function.
  bool has_rule(const Collective& collective, const SelectionQuery& query) const {
    return overridden(collective, query).has_value();
  }
  // The smallest power of two that is at least `bytes`, but not more than 2^48. If the tuner decides, choose() makes
  // one selection for all numbers of bytes with the same result, unless a rule of TUTTI_TUNE applies.
  static std::uint64_t rounded_up_bytes(std::uint64_t bytes);
  // Makes the selection that choose() makes for a call on host memory, and returns it with all predictions. Slow if
  // there is a tuner, because it runs the tuner.
  Decision explain(Collective collective, SelectionQuery query);
  // Returns the predicted time in microseconds, or nothing if there is no tuner or it cannot predict the call. The
  // result of a simulation is stored, and is used again for calls with the same collective, algorithm, execution
  // method, chunk size and number of bytes. The root does not affect the result.
  std::optional<double> predict(const Collective& collective, const SelectionQuery& query, Selection selection);
  // How often predict() has asked the tuner so far, because no result was stored. choose() and explain() do not count.
  // Tests use it to check that stored results are used.
  std::uint64_t simulated() const { return simulated_; }

 private:
  // Indexed by the number of bits of (bytes - 1), because the limit of mailboxes is a power of two, and a size equal to
  // the limit belongs to the shorter side. (The sizes in MachineChoices need not be powers of two, but the table is not
  // used if all ranks share memory.) kAuto means not selected yet.
  using Buckets = std::array<Selection, 65>;
  const Tuner* tuner();
  SelectionQuery complete(const Collective& collective, SelectionQuery query) const;
  ExecutionMethod way_of(const Collective& collective, const SelectionQuery& query, Algorithm algorithm) const;
  std::vector<Candidate> candidates(const Collective& collective, const SelectionQuery& query) const;
  std::optional<Selection> overridden(const Collective& collective, const SelectionQuery& query) const;
  bool tuner_decides() const { return !options_.memory || !options_.nodes.empty(); }

  SelectorOptions options_;
  std::optional<Tuner> tuner_;
  bool tuner_created_ = false;  // true if tuner() has tried to create the tuner
  // Indexed by the type of the collective and the other properties that a selection depends on.
  std::map<std::uint32_t, Buckets> table_;
  using PredictionKey = std::tuple<CollectiveKind, Algorithm, ExecutionMethod, std::uint32_t, std::uint64_t>;
  std::map<PredictionKey, std::optional<double>> predicted_;  // at most kMaxStoredPredictions
  std::uint64_t simulated_ = 0;
};

}  // namespace tutti::detail
