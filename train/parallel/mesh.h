// The ranks as a mesh: data x pipeline x tensor. Rank r is data-parallel rank r / (pipeline * tensor), stage
// r / tensor % pipeline, tensor-parallel rank r % tensor: those that talk most are neighbours.
#pragma once

#include <memory>

#include "train/options.h"
#include "train/parallel/comm.h"

namespace tutti::train {

struct Mesh {
  // Collective over the job's ranks, where there is a communicator. It outlives the mesh.
  Mesh(Communicator* job, const TrainOptions& options);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  CommTime time;
  Comm world;
  Comm data;    // ranks that have the same layers and different samples
  Comm tensor;  // ranks that share layers
  Comm pipe;    // stages
  Comm group;   // of data: those that share one set of shards (kMics)
  Comm across;  // of data: those that have the same shard in other groups (kMics)
  void abort();
  bool is_last_stage() const { return pipe.rank() + 1 == pipe.size(); }
};

}  // namespace tutti::train
