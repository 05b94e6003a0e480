// Checkpoints by name: "runs/old@300", "runs/old@best".
#pragma once
#include <optional>
#include <string>

#include "base/file.h"
#include "checkpoint/manifest.h"

namespace trireme {

struct NamedCheckpoint {
  fs::path run;     // run folder
  fs::path folder;  // checkpoint; empty: the newest of the run
};
// Takes a run folder, a checkpoint's folder, or RUN@STEP, RUN@best or RUN@newest. A folder that exists under
// the whole name comes first, so that a path may contain "@".
// Returns no value if `text` has none of these forms.
// Throws Error (request), naming the steps that exist, if the run has no such checkpoint.
std::optional<NamedCheckpoint> checkpoint_named(const std::string& text);

// Held-out loss that the manifest records (state.eval_loss).
std::optional<double> eval_loss_of(const Manifest&);

// Step of the checkpoint under `root` with the lowest recorded held-out loss, the first of equal ones. Reads
// manifests only, and passes over damaged ones.
std::optional<int64_t> best_step(const fs::path& root);

}  // namespace trireme
