// What `tutti train` is told, as a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/models.h"
#include "train/pass.h"

namespace tutti::train {

enum class Strategy : std::uint8_t { kDdp, kZero1, kZero2, kZero3, kMics, kServer };
enum class Schedule : std::uint8_t { kGpipe, kOneForwardOneBackward };
enum class OptimizerKind : std::uint8_t { kSgd, kAdamW };
enum class Decay : std::uint8_t { kNone, kLinear, kCosine };

// Numbers below 0 (or empty texts) stand for the model's default, which complete() fills in.
struct TrainOptions {
  ModelConfig model;
  std::int32_t ranks = 1;
  bool ranks_given = false;
  Strategy strategy = Strategy::kDdp;
  std::int32_t group = 0;     // ranks that share one set of shards, of kMics
  std::int32_t servers = 1;   // of kServer
  std::int32_t tensor = 1;    // ranks that share each layer
  std::int32_t pipeline = 1;  // stages
  Schedule schedule = Schedule::kOneForwardOneBackward;
  std::int64_t micro_batches = 0;  // of a pipeline, for each data-parallel rank; 0: twice the stages
  std::int64_t accumulate = 1;     // passes of a step, between which nothing is communicated
  std::int64_t as_ranks = 0;       // one process that adds up the gradients of so many ranks' shares in their order

  std::string data;  // empty: what the model reads
  std::string data_folder;
  std::int64_t samples = 0;
  std::int64_t batch = -1;  // of all ranks together
  double epochs = -1;
  std::int64_t steps = 0;  // instead of epochs
  std::uint64_t seed = 1;

  OptimizerKind optimizer = OptimizerKind::kSgd;
  bool optimizer_given = false;
  double lr = -1;
  bool scale_lr = false;  // by batch / the model's default batch
  double momentum = 0.9;
  double weight_decay = 0;
  std::int64_t warmup = 0;  // steps over which the rate grows from 0
  Decay decay = Decay::kLinear;
  double clip = 0;  // greatest norm of the gradient; 0: any

  Precision precision = Precision::kFloat32;
  bool recompute = false;
  std::string offload;  // folder
  std::int64_t bucket_kb = 1024;
  bool overlap = true;
  std::string algorithm = "auto";  // of gradients' all-reduce
  bool balance = false;            // shares of the batch by measured speed
  std::int32_t slow_rank = -1;     // a rank that computes `slow_factor` times as long as it needs: to try --balance
  double slow_factor = 1;
  std::string device = "cpu";
  std::int32_t threads = 0;  // of libtorch's, for each rank; 0: the cores divided by the ranks

  std::string checkpoint;             // folder
  std::int64_t checkpoint_every = 0;  // steps; 0: at the end of each epoch
  bool resume = false;
  double test_every = 1;      // epochs; 0: only at the end
  std::int64_t patience = 0;  // tests without a better loss, after which all stop; 0: never
  double minutes = 0;         // after which all stop; 0: never
  std::string json;
  bool elastic = false;
  std::uint64_t memory_bytes = 0;  // available on this machine for all ranks; 0: unknown
  bool terminal = false;           // a progress bar may move
  bool quiet = false;
};

// Defaults filled in, and everything checked that can be before ranks are started. Throws Failure (kInvalidArgument).
void complete(TrainOptions& options);
// Ranks that train different samples.
std::int32_t data_ranks(const TrainOptions& options);

const char* name_of(Strategy strategy);
const char* name_of(OptimizerKind kind);
const char* name_of(Precision precision);

}  // namespace tutti::train
