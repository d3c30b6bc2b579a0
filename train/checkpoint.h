// Checkpoints of a training. Each checkpoint is a folder with one file per rank and a manifest:
//
//   DIR/step-00000938/rank-0.part
//                     rank-1.part
//                     ...
//                     manifest.json
//
// The manifest contains the length and the checksum of each file, so that a damaged checkpoint is detected. A
// checkpoint is written into a folder with another name (.partial), which is renamed after all files are on the disk.
// So a folder with the final name was complete when it was renamed.
//
// The last kKeptCheckpoints (checkpoint.cc) checkpoints are kept. When a training resumes from a checkpoint, newer
// checkpoints (which are damaged) are removed, because they would be in the way of the new ones.
//
// A training can resume with another number of ranks and another strategy, because each rank reads the parts that it
// needs from all files. The functions here are called by all ranks of the mesh, each by its own thread, except
// check_folder().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/learner.h"

namespace tutti::train {

// The progress of a training: its step, and the history of its tests. Values, optimizer state and loss scale are
// elsewhere.
struct Progress {
  // number of completed steps
  std::int64_t step = 0;
  double best_loss = 0;  // lowest loss of all tests but the one after the last step; 0: no test yet
  // Number of tests since the one with the lowest loss (see TrainOptions::patience).
  std::int64_t tests_without_better = 0;
};

// Throws Failure on all ranks if the folder already contains checkpoints, so that a new training does not mix with an
// old one. Collective over the mesh.
void refuse_checkpoints(const std::string& folder, Mesh& mesh);

// Creates the folder and checks that files can be written to it. Throws Failure with the reason if that is not
// possible.
void check_folder(const std::string& folder);

// Writes a checkpoint. Collective over the mesh. Throws Failure on all ranks if a rank cannot write a file (the message
// names the rank and the reason), or if a parameter is not finite. Checkpoints of earlier steps are kept in this case.
void save_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                     const Progress& progress);

// Restores the state from the newest complete checkpoint. Damaged checkpoints are skipped, with a message in `notes`
// on rank 0, and those newer than the restored one are removed. Collective over the mesh. Throws Failure, and changes
// nothing, if there is no complete checkpoint, or if it was written with another model, optimizer, batch size, seed
// or other training samples.
Progress load_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                         std::vector<std::string>& notes);

}  // namespace tutti::train
