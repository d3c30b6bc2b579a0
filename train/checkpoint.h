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
// The last kKeptCheckpoints (checkpoint.cc) checkpoints are kept. When a training resumes from a checkpoint, it removes
// the newer ones, which rank 0 could not read. Otherwise they would count as the last ones, and the checkpoints that
// the training writes next would be removed in their place.
//
// A training can resume with another number of ranks and another strategy, because each rank reads the parts that it
// needs from all files. Each rank of the mesh calls the functions here from its own thread, except check_folder(),
// which one process calls before the ranks are started.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/learner.h"

namespace tutti::train {

// The progress of a training: its step, and the history of its tests. The Learner has the values, the optimizer state
// and the loss scale.
struct Progress {
  // number of completed steps
  std::int64_t step = 0;
  double best_loss = 0;  // lowest loss of the tests so far, without the test at the end of a run; 0: no test yet
  // Number of these tests since the one with the lowest loss (see TrainOptions::patience).
  std::int64_t tests_without_better = 0;
};

// Throws Failure on all ranks if the folder already contains checkpoints, so that a new training does not mix with an
// old one. Collective over the mesh.
void refuse_checkpoints(const std::string& folder, Mesh& mesh);

// Creates the folder if it is missing, and checks that files can be written to it. Throws Failure with the reason if
// either is not possible.
void check_folder(const std::string& folder);

// Writes a checkpoint. Collective over the mesh. Throws Failure on all ranks if a rank cannot write a file (the message
// names the rank and the reason), or if a parameter is not finite. In both cases the previous checkpoint is kept.
void save_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                     const Progress& progress);

// Restores the state from the newest checkpoint that rank 0 can read. The newer ones are skipped, with a message in
// `notes` on rank 0, and are then removed. Collective over the mesh. Throws Failure, and does not change the learner,
// if rank 0 can read no checkpoint, if another rank cannot read the selected one, or if that one was written with
// another model, optimizer, batch size or seed, or with other training samples.
Progress load_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                         std::vector<std::string>& notes);

}  // namespace tutti::train
