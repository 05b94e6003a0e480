// Where a run continues: which checkpoint, and whether it may.
#pragma once
#include "train/checkpointing.h"
#include "train/data_identity.h"

namespace trireme {

struct FoundCheckpoint {
  fs::path folder;                   // the newest complete checkpoint; empty: none
  std::vector<std::string> damaged;  // newer ones that were passed over, with the reason; rank 0
};
// Finds the newest complete checkpoint among rank 0's `folders` (newest first). On all ranks: each digests
// its part of the files, so that a checkpoint is read once whatever the number of ranks. Older ones are not
// read.
FoundCheckpoint find_together(const std::vector<fs::path>& folders, Communicator&);

// If no checkpoint of the run has a regular file as its manifest, and each has something else there, such as
// a pipe: no save of trireme made them. Renames the folders and metrics.jsonl, so that the run can start at
// step 1 and nothing is lost. A missing or damaged manifest file is no such case: the user decides. Returns
// notes.
std::vector<std::string> set_aside_foreign(const fs::path& run_dir);

// Checkpoints that train.branch names, newest first: one, or those of the run folder.
// bad_request if there are none.
std::vector<fs::path> branch_checkpoints(const std::string& from);

// Compares the run with the one that saved the checkpoint. Returns notes on what differs and may differ.
// train.steps may differ if the learning rates of all steps done are the same.
// Throws Error (request) naming the keys that differ with both values, or the file of the data.
std::vector<std::string> refuse_other_run(const RunSpec&, const Checkpoint&, const DataContent&);

// The same for a checkpoint that a run branches from: model and optimizer must be the same.
// Returns a note that names the settings which differ, or none.
std::vector<std::string> refuse_other_branch(const RunSpec&, const Checkpoint&);

}  // namespace trireme
