// Between a StageRunner and the checkpoint store: names, boxes, and what a resume must find.
#pragma once
#include "checkpoint/store.h"
#include "runtime/stage_runner.h"

namespace trireme {

inline fs::path checkpoint_root(const fs::path& run_dir) {
  return run_dir / "checkpoints";
}

// Saves parameters (f32 master copies) and optimizer state as of the end of `step`. Returns the folder. On
// all ranks: each writes a file of what it answers for, rank 0 publishes; the hook sees rank 0's phases.
fs::path save_checkpoint(const StageRunner&, const RunSpec&, int64_t step, const PhaseHook&);

// The pieces of a save, for whoever makes it in more than one go (async_saver.h): what this rank answers for,
// in the runner's own memory; the manifest but for its files; a rank's file, its name and, as a rank tells
// rank 0 of it, a line; and what follows a publication.
std::vector<NamedTensor> checkpoint_tensors(const StageRunner&);
Manifest checkpoint_manifest(const StageRunner&, const RunSpec&, int64_t step);
std::string rank_file_name(int rank);
std::string file_line(const CheckpointFile&);
CheckpointFile file_of_line(const std::string&);
void prune_after_save(const RunSpec&, int64_t step, const PhaseHook&);

// Reads a checkpoint of any layout into the runner, on all ranks; `with_state` = optimizer state too.
void load_checkpoint(StageRunner&, const Checkpoint&, bool with_state);

// Does the checkpoint belong to this run? bad_request with the keys that differ if not.
void refuse_other_run(const RunSpec&, const Checkpoint&);

// How this run divides its work otherwise than the one that saved (diff_of_division); none where that
// one's layout is refused here.
std::vector<std::string> other_division(const RunSpec&, const Checkpoint&);

// To use its weights, the model alone must be the same: others may fit by their shapes and mean something
// else.
void refuse_other_model(const RunSpec&, const Checkpoint&);

}  // namespace trireme
