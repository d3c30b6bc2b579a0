// Mesh: the ranks of a training as a mesh, data x pipeline x tensor. Rank r is data-parallel rank r / (pipeline *
// tensor), pipeline stage (r / tensor) % pipeline, and tensor-parallel rank r % tensor. So ranks that communicate
// most have consecutive numbers, and are usually on the same machine. One thread uses a Mesh.
#pragma once

#include <memory>

#include "train/options.h"
#include "train/parallel/comm.h"

namespace tutti::train {

struct Mesh {
  // Creates the groups by splitting the communicator of the job; collective over it. If `job` is null, each group has
  // one rank. `job` must outlive the mesh.
  Mesh(Communicator* job, const TrainOptions& options);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  CommTime time;
  // all ranks of the job
  Comm world;
  Comm data;    // ranks that have the same layers and train on different samples (with kServer also the servers)
  Comm tensor;  // ranks that share each layer (tensor parallel)
  Comm pipe;    // the stages of one pipeline
  Comm group;   // only kMics: ranks of `data` that share one set of shards; otherwise this rank alone
  Comm across;  // only kMics: ranks of `data` with the same shard in different groups; otherwise this rank alone
  // Aborts all communicators of the mesh.
  void abort();
  bool is_last_stage() const { return pipe.rank() + 1 == pipe.size(); }
};

}  // namespace tutti::train
