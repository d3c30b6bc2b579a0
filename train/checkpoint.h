// Checkpoints: a folder for each, with a file of every rank that keeps something, and a manifest that seals them:
//
//   DIR/step-00000938/rank-0.part ... manifest.json
//
// A checkpoint counts when its folder has that name: it is written beside, and renamed when all of it is on the disk.
// The last two stay, and what is newer than the one that a training went on with is in the way of it, and is removed.
// Any number of ranks by any strategy can go on with it: they put together what they need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/learner.h"

namespace tutti::train {

// What a training has come to, beside values and moments.
struct Progress {
  std::int64_t step = 0;  // steps done
  double best_loss = 0;   // of tests; 0: none yet
  std::int64_t tests_without_better = 0;
};

// Throws Failure, on all ranks, where checkpoints of another training are in the way. Collective over the mesh.
void refuse_checkpoints(const std::string& folder, Mesh& mesh);

// Whether checkpoints can be written there; makes the folder. Throws Failure: not, and why.
void check_folder(const std::string& folder);

// Collective over the mesh. Throws Failure, on all ranks, naming the rank that could not write and why; what was saved
// before stays; so it does where a value is not finite.
void save_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                     const Progress& progress);

// The newest one that is whole; those that are torn are told in `notes` and passed over. Collective over the mesh.
// Throws Failure: there is none, or it is of another model, optimizer, batch, seed or data. Nothing was changed then.
// Checkpoints that are newer than it, which were torn, are removed.
Progress load_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                         std::vector<std::string>& notes);

}  // namespace tutti::train
