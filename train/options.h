// TrainOptions: the options of `tutti train` as a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/models.h"
#include "train/pass.h"

namespace tutti::train {

enum class Strategy : std::uint8_t { kDdp, kZero1, kZero2, kZero3, kMics, kServer };
enum class Schedule : std::uint8_t { kGpipe, kOneForwardOneBackward };
enum class OptimizerType : std::uint8_t { kSgd, kAdamW };
enum class Decay : std::uint8_t { kNone, kLinear, kCosine };

// All options of a training. If `batch`, `epochs` or `lr` is below 0, complete() replaces it by the default of the
// model. The default of `lr` also depends on the optimizer. An empty `data` stands for the usual data set of the model,
// which load_data() selects.
struct TrainOptions {
  ModelConfig model;
  std::int32_t ranks = 1;
  bool ranks_given = false;
  Strategy strategy = Strategy::kDdp;
  std::int32_t group = 0;     // only kMics: number of ranks that share one set of shards
  std::int32_t servers = 1;   // only kServer: number of parameter servers
  std::int32_t tensor = 1;    // number of ranks that share each layer
  std::int32_t pipeline = 1;  // number of pipeline stages
  Schedule schedule = Schedule::kOneForwardOneBackward;
  // Largest number of micro-batches per step, of each data-parallel rank; there are fewer if the largest share of the
  // batch has fewer samples. 0: twice the number of pipeline stages; 1 without a pipeline.
  std::int64_t micro_batches = 0;
  // Passes per step; more if `micro_batches` is greater, fewer if the largest share of the batch has fewer samples.
  // ddp, zero1 and server exchange gradients only in or after the last pass.
  std::int64_t accumulate = 1;
  // If greater than 0, this one process computes the shares of that many ranks, and adds up their gradients in rank
  // order.
  std::int64_t as_ranks = 0;

  std::string data;  // empty: the usual data set for the model
  std::string data_folder;
  std::int64_t samples = 0;
  std::int64_t batch = -1;  // samples per step, of all ranks together
  double epochs = -1;
  std::int64_t steps = 0;  // number of steps; if greater than 0, epochs is ignored
  std::uint64_t seed = 1;

  OptimizerType optimizer = OptimizerType::kSgd;
  bool optimizer_given = false;
  double lr = -1;
  bool scale_lr = false;  // multiplies lr by batch / the default batch of the model
  double momentum = 0.9;
  double weight_decay = 0;
  std::int64_t warmup = 0;  // number of first steps, during which the learning rate grows linearly from near 0
  Decay decay = Decay::kLinear;
  double clip = 0;  // largest norm of the gradient; 0: unlimited

  Precision precision = Precision::kFloat32;
  bool recompute = false;
  // Only with `recompute`: folder of a temporary file for the saved inputs of layers. Empty: they stay in memory.
  std::string offload;
  std::int64_t bucket_kb = 1024;
  bool overlap = true;
  std::string algorithm = "auto";  // only kDdp: algorithm of the all-reduce of gradients
  bool balance = false;            // shares of the batch are proportional to measured speed
  // To try --balance: this rank computes `slow_factor` times as long as it needs. -1: none.
  std::int32_t slow_rank = -1;
  double slow_factor = 1;
  std::string device = "cpu";
  std::int32_t threads = 0;  // libtorch threads per rank; 0: cores / ranks

  std::string checkpoint;             // folder for checkpoints; empty: none are written
  std::int64_t checkpoint_every = 0;  // steps between checkpoints; 0: one after each epoch; always one at the end, too
  bool resume = false;
  double test_every = 1;      // epochs between tests; 0: none before the test at the end
  std::int64_t patience = 0;  // tests in a row without a better loss after which all ranks stop; 0: never
  double minutes = 0;         // minutes after which all ranks stop; 0: never
  std::string json;
  bool elastic = false;
  std::uint64_t memory_bytes = 0;  // available on this machine for all ranks; 0: unknown, not checked
  bool terminal = false;           // stderr is a terminal, so progress may be a line that is overwritten
  bool quiet = false;
};

// Fills in the defaults, and checks the options as far as that is possible without the data and the files. Throws
// Failure (kInvalidArgument).
void complete(TrainOptions& options);
// The number of data-parallel ranks: `ranks`, divided by the number of ranks that hold one copy of the model (tensor *
// pipeline). These copies train on different samples. With kServer, the servers are counted as well, although they do
// not train.
std::int32_t data_ranks(const TrainOptions& options);

const char* name_of(Strategy strategy);
const char* name_of(OptimizerType kind);
const char* name_of(Precision precision);

}  // namespace tutti::train
