// Between a StageRunner and the checkpoint store: names, boxes, and what a resume must find.
#pragma once
#include <memory>

#include "checkpoint/store.h"
#include "runtime/stage_runner.h"

namespace trireme {

inline fs::path checkpoint_root(const fs::path& run_dir) {
  return run_dir / "checkpoints";
}

// The tensors that this rank answers for, as they are saved.
struct SavedTensors {
  std::vector<NamedTensor> tensors;                  // in host memory, each with the hash of its bytes
  std::vector<std::unique_ptr<std::byte[]>> copies;  // tensors from memory that the processor cannot read
};
// Throws Error (run) naming the tensor if a value is not finite. A tensor in host memory is not copied.
SavedTensors tensors_to_save(const StageRunner&, int64_t step);

// Adds to a manifest what the runner does not know: data, place, held-out loss. Called on every rank, on the
// training thread; may be empty.
using CompleteManifest = std::function<void(Manifest&)>;

// Saves parameters (f32 master copies) and optimizer state as of the end of `step`. Returns the folder. On
// all ranks: each writes a file of what it answers for, rank 0 publishes; the hook sees rank 0's phases.
fs::path save_checkpoint(const StageRunner&, const RunSpec&, int64_t step, const PhaseHook&,
                         const SavedTensors&, const CompleteManifest& = {});
fs::path save_checkpoint(const StageRunner&, const RunSpec&, int64_t step, const PhaseHook&);

// The pieces of a save, for whoever makes it in more than one go (async_saver.h): what this rank answers for,
// in the runner's own memory; the manifest but for its files; a rank's file, its name and, as a rank tells
// rank 0 of it, a line; and what follows a publication.
std::vector<NamedTensor> checkpoint_tensors(const StageRunner&);
Manifest checkpoint_manifest(const StageRunner&, const RunSpec&, int64_t step, const CompleteManifest&);
// Throws Error (run) naming the tensor and `step` if one of the values (f32 or bf16) is not finite. Also if
// the square of a weight or first moment is not: a backward pass multiplies such values, and no loss need
// show them.
void refuse_nonfinite(const NamedTensor&, int64_t step);
std::string rank_file_name(int rank);
std::string file_line(const CheckpointFile&);
CheckpointFile file_of_line(const std::string&);
// The step of train.keep_best, which pruning leaves.
std::optional<int64_t> kept_best(const RunSpec&);
void prune_after_save(const RunSpec&, int64_t step, const PhaseHook&);

// The state that a runner takes from a checkpoint: weights alone; all state, as a resume does; or all state
// that exists, for a run whose settings differ (train.branch).
enum class Load : uint8_t { weights, resume, branch };
// Reads a checkpoint of any layout into the runner, on all ranks.
void load_checkpoint(StageRunner&, const Checkpoint&, Load);

// The spec of the run that saved the checkpoint.
RunSpec saved_run(const Checkpoint&);

// How this run divides its work otherwise than the one that saved (diff_of_division); none where that
// one's layout is refused here.
std::vector<std::string> other_division(const RunSpec&, const Checkpoint&);

// To use its weights, the model alone must be the same: others may fit by their shapes and mean something
// else.
void refuse_other_model(const RunSpec&, const Checkpoint&);

}  // namespace trireme
