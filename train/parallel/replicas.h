// Replicas: how ranks that train the same row of layers on different samples share its values, its gradients and the
// optimizer's state. Each strategy is a file of its own; the trainer drives all of them alike:
//
//   begin_step()                          gradients are zero
//   for each pass (micro-batch):
//     need(layer), forward                                               of each layer, forwards
//     need(layer), begin_backward(layer), backward, end_backward(layer)  of each layer, backwards
//   finish()                              the sums of all ranks are in shards()
//   ... the optimizer changes the values of shards() ...
//   publish()                             everyone has the new values
//
// The gradients that passes give are such that their plain sum over ranks and passes is the gradient of the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "train/parallel/flat.h"

namespace tutti::train {

// What this rank keeps up to date: 1-D tensors of equal length, and what they hold of which parameter.
struct Shard {
  Tensor values;
  Tensor gradients;  // after finish()
  std::vector<Piece> pieces;
};

struct ReplicaOptions {
  std::int64_t bucket_bytes = 1 << 20;  // of gradients that travel together
  bool overlap = true;                  // communicate while backward goes on
  bool keep_in_place = true;            // gradients in memory that ranks of a machine reach in place
  std::size_t first_layer = 0;          // of the row, in the model: for names
  torch::Device device = torch::kCPU;
};

class Replicas {
 public:
  virtual ~Replicas() = default;
  virtual void begin_step() = 0;
  // Values of this layer are about to be used, until the next call; `next`: the layer after that, or -1.
  virtual void need(std::size_t layer, std::int64_t next) = 0;
  virtual void begin_backward(std::size_t layer) = 0;
  // `last`: no pass of this step will come back to it.
  virtual void end_backward(std::size_t layer, bool last) = 0;
  virtual void finish() = 0;
  virtual std::vector<Shard>& shards() = 0;
  virtual void publish() = 0;
  // After a failure, when the communicator was aborted: nothing uses the gradients any more.
  virtual void abandon() = 0;
  // Whether all ranks have the same shards: then each counts all of them, else they are added up.
  virtual bool replicated() const = 0;
  // False: this rank only keeps values up to date, and has no samples (a parameter server).
  virtual bool computes() const = 0;
  // Bytes of values, gradients and buffers for them that a rank holds between steps, by arithmetic; the optimizer's
  // state is not counted.
  virtual std::int64_t held_bytes() const = 0;
};

// What all strategies do not do.
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

// data parallel: every rank has everything, gradients are all-reduced bucket by bucket while backward goes on.
// Source: Li et al., PyTorch Distributed, 2020.
std::unique_ptr<Replicas> make_data_parallel(const Row& row, Comm& ranks, const ReplicaOptions& options);
// ZeRO-1: values and gradients on every rank, the optimizer's state in shards. Source: Rajbhandari et al., ZeRO, 2020.
std::unique_ptr<Replicas> make_sharded_optimizer(const Row& row, Comm& ranks, const ReplicaOptions& options);
// ZeRO-2: gradients in shards, too.
std::unique_ptr<Replicas> make_sharded_gradients(const Row& row, Comm& ranks, const ReplicaOptions& options);
// ZeRO-3 (fully sharded): values in shards, too, gathered layer by layer. `across`: ranks that hold the same shard in
// other groups (MiCS: Zhang et al., 2022), or a group of one.
std::unique_ptr<Replicas> make_fully_sharded(const Row& row, Comm& ranks, Comm& across, const ReplicaOptions& options);
// Parameter servers, which all-reduce has replaced: the first `servers` ranks keep values and the optimizer's state, a
// part each, and add up what the others, the workers, send. Source: Li et al., 2014.
std::unique_ptr<Replicas> make_parameter_server(const Row& row, Comm& ranks, std::int32_t servers,
                                                const ReplicaOptions& options);

}  // namespace tutti::train
