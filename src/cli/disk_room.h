// Space for checkpoints on the disk of a run folder.
#pragma once
#include <string>

#include "spec/run_spec.h"

namespace trireme::cli {

// The folder itself, or its nearest parent that exists.
fs::path nearest_existing(const fs::path& folder);
// Bytes that this user may write to the disk of an existing folder; -1: unknown.
int64_t free_bytes(const fs::path& folder);

// A sentence if train.keep + 1 checkpoints do not fit on the disk of train.dir; a save publishes the new one
// before it removes the oldest. Checkpoints that the folder has already count as space. Empty: they fit.
std::string disk_note(const RunSpec&);

}  // namespace trireme::cli
