// Replicas: how ranks that train the same layers on different samples share values, gradients and optimizer state. Each
// strategy has a file of its own, except that ZeRO-3 and MiCS share one. The learner uses all of them in the same way:
//
//   begin_step()                          the gradients of the step start at zero
//   for each pass (micro-batch):
//     need(layer), forward                                               for each layer, first to last
//     need(layer), begin_backward(layer), backward, end_backward(layer)  for each layer, last to first
//   finish()                              shards() then hold the sums of the gradients of all ranks
//   ... the optimizer changes the values of shards() ...
//   publish()                             the next passes of all ranks then use the new values
//
// The passes scale their gradients so that the plain sum over all ranks and passes is the gradient of the batch.
//
// With a pipeline, several passes can be between their forward and their backward part. One thread uses a Replicas
// object. All ranks make the same calls in the same order, because most of them are collective. Only a rank for which
// computes() is false executes no passes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "train/parallel/flat.h"

namespace tutti::train {

// Values that this rank updates, and their gradients: two one-dimensional tensors of equal length, and the parameter
// slices in them.
struct Shard {
  Tensor values;
  Tensor gradients;  // valid after finish(): the sum over all ranks and passes
  std::vector<ParameterSlice> slices;
};

struct ReplicaOptions {
  // Least number of bytes of gradients in a bucket, except in the last one. ZeRO-3, MiCS and parameter servers ignore
  // it.
  std::int64_t bucket_bytes = 1 << 20;
  bool overlap = true;          // communicate during the backward pass
  bool keep_in_place = true;    // data parallel only: put gradients in memory that all ranks of a machine can map
  std::size_t first_layer = 0;  // index in the model of the first layer; for parameter names
  torch::Device device = torch::kCPU;
};

class Replicas {
 public:
  virtual ~Replicas() = default;
  virtual void begin_step() = 0;
  // Makes the values of this layer available until the next call of need(). `next` is the layer that will be needed
  // after it, so that its values can be fetched in the meantime; -1: none.
  virtual void need(std::size_t layer, std::int64_t next) = 0;
  // Called before the backward pass of a layer.
  virtual void begin_backward(std::size_t layer) = 0;
  // Called after the backward pass of a layer. `last`: this was the last pass of the step, so this rank's gradients of
  // the layer are complete.
  virtual void end_backward(std::size_t layer, bool last) = 0;
  virtual void finish() = 0;
  virtual std::vector<Shard>& shards() = 0;
  virtual void publish() = 0;
  // Called after a failure in an elastic job, when the communicator has been aborted. Waits until no call uses the
  // gradients any more. Only data parallel, the strategy of elastic jobs, implements it.
  virtual void abandon() = 0;
  // Whether all ranks have the same shards. If so, each rank's shards cover the whole gradient; otherwise a norm, for
  // example, has to be summed over ranks.
  virtual bool replicated() const = 0;
  // Whether this rank trains on samples. False for a parameter server, which only updates values.
  virtual bool computes() const = 0;
  // Bytes of values, gradients and their buffers that this rank holds between steps, calculated from their sizes. The
  // optimizer state is not included, nor are the values of the whole model that the layers of a parameter server keep.
  virtual std::int64_t held_bytes() const = 0;
};

// Default implementations of the functions that some strategies do not need.
class BaseReplicas : public Replicas {
 public:
  void begin_step() override {}
  void need(std::size_t, std::int64_t) override {}
  void begin_backward(std::size_t) override {}
  void publish() override {}
  void abandon() override {}
  bool computes() const override { return true; }
  std::vector<Shard>& shards() override { return shards_; }

 protected:
  std::vector<Shard> shards_;
};

// Data parallel: every rank holds everything. Gradients are all-reduced bucket by bucket, with overlap during the
// backward pass. Source: Li et al., PyTorch Distributed, 2020.
std::unique_ptr<Replicas> make_data_parallel(const Layers& layers, Comm& ranks, const ReplicaOptions& options);
// ZeRO-1: every rank holds all values and gradients; the optimizer state is sharded. Source: Rajbhandari et al.,
// ZeRO, 2020.
std::unique_ptr<Replicas> make_sharded_optimizer(const Layers& layers, Comm& ranks, const ReplicaOptions& options);
// ZeRO-2: gradients are sharded as well.
std::unique_ptr<Replicas> make_sharded_gradients(const Layers& layers, Comm& ranks, const ReplicaOptions& options);
// ZeRO-3 (fully sharded): values are sharded as well, and gathered layer by layer. `across` contains the ranks that
// hold the same shard in other groups (MiCS: Zhang et al., 2022), or is a group of one rank.
std::unique_ptr<Replicas> make_fully_sharded(const Layers& layers, Comm& ranks, Comm& across,
                                             const ReplicaOptions& options);
// Parameter servers, which were common before all-reduce. The first `servers` ranks hold values and optimizer state,
// one part each, and add up the gradients that the other ranks, the workers, send. Source: Li et al., 2014.
std::unique_ptr<Replicas> make_parameter_server(const Layers& layers, Comm& ranks, std::int32_t servers,
                                                const ReplicaOptions& options);

}  // namespace tutti::train
