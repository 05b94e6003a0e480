// Checkpoints of a run on disk: saving, finding the newest complete one, pruning.
//
// At any instant, through any kill, the newest complete checkpoint under `root` (`<run>/checkpoints`) is
// whole: a new one is written in "step-00000200.part", its files and folder are flushed, and one rename gives
// it its name. Older ones go only after the new one has been read back. One process at a time writes under a
// root.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/part_folder.h"

namespace trireme {

// Called when a phase of a save has ended, for tests that kill the process there: "begin", "tensor:0"
// (counted over the checkpoint), ..., "data_flushed", "manifest_written", "folder_flushed", "renamed",
// "verified", "pruned".
using PhaseHook = std::function<void(std::string_view)>;

std::string step_folder_name(int64_t step);                         // "step-00000200"
std::optional<int64_t> step_of_folder_name(std::string_view name);  // none for any other name

// Writes one safetensors file of parts and returns what the manifest says of it. Ranks that write files of
// their own call this on the folder that one CheckpointWriter made.
CheckpointFile write_parts(const fs::path& folder, std::string_view file_name, std::span<const NamedTensor>,
                           const std::function<void()>& after_tensor = {});

// Writes one checkpoint; unpublished it leaves no trace.
class CheckpointWriter {
 public:
  CheckpointWriter(const fs::path& root, int64_t step, PhaseHook = {});
  const fs::path& folder() const { return part_.path(); }  // where files go until publish()
  void write(std::string_view file_name, std::span<const NamedTensor>);
  void add(CheckpointFile f) { files_.push_back(std::move(f)); }  // written by another rank
  // Fills in the manifest's step, files and time, publishes, and reads everything back. Returns the folder.
  fs::path publish(Manifest);

 private:
  void phase(std::string_view name) {
    if (hook_) hook_(name);
  }
  int64_t step_;
  fs::path target_;
  PhaseHook hook_;
  PartFolder part_;
  std::vector<CheckpointFile> files_;
  int64_t tensors_ = 0;
};

struct SaveOptions {
  int keep = 0;  // complete checkpoints that stay, this one included; 0 = all
  PhaseHook phase;
  bool keep_best = false;  // the one with the lowest recorded held-out loss stays too
};
// The whole way for one process: write, publish, verify, prune. Any Error up to "verified" leaves no part
// folder and every earlier checkpoint as it was.
fs::path save(const fs::path& root, const Manifest&, std::span<const NamedTensor>, const SaveOptions& = {});

// Checkpoint::open(), and the step of the manifest must be the step in the folder's name.
Checkpoint open_as_named(const fs::path& folder, Verify);
// Folders of all checkpoints under root, newest first, complete or not.
std::vector<fs::path> checkpoints_in(const fs::path& root);

struct Found {
  std::optional<Checkpoint> newest;  // complete
  std::vector<std::string> damaged;  // newer ones that were passed over: one line each, with the reason
};
// No folder or an empty one: neither. When `newest` is none and `damaged` is not empty, starting afresh would
// be the caller's decision, not an accident.
Found find_newest(const fs::path& root, Verify = Verify::hashes);

// Keeps the newest `keep` (>= 1) complete checkpoints, verified here unless listed in `known_good`, and
// removes what is older, damaged ones included, but not step `also`. Newer damaged ones stay as evidence.
// Removes nothing unless `keep` are complete. Returns the removed steps. Verify::sizes does not read their
// data, so that its cost does not grow with the size of the run.
std::vector<int64_t> prune(const fs::path& root, int keep, std::span<const int64_t> known_good = {},
                           Verify = Verify::hashes, std::optional<int64_t> also = {});

// Part folders of saves that were killed; call before the first save of a run. Returns their names.
std::vector<std::string> remove_leftovers(const fs::path& root);

}  // namespace trireme
