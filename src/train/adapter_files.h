// Adapters of a run in files, and merged into the base (model/adapters.h, checkpoint/peft.h).
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "runtime/stage_runner.h"

namespace trireme {

// Reads an adapter in PEFT's format into this rank's master copies. bad_request unless rank, alpha and
// matrices are those of [lora].
void read_adapter(StageRunner&, const fs::path& folder);
// Writes the adapter of a runner that has the whole model.
void write_adapter(const StageRunner&, const fs::path& folder);
// Adds the adapter's product to the values f32 [out, in] of the matrix, if it has one: W + s B A, summed in
// double and rounded once. The runner has the whole model.
void merge_adapter(const StageRunner&, const Param& matrix, std::span<float> values);

// The base that adapters are trained on, as checkpoints record it (HfFolder::sampled_digest).
inline bool has_base(const RunSpec& run) {
  return run.lora.active() && !run.model.from.empty();
}
nlohmann::json base_identity(const RunSpec&);
// Throws Error (request) if the checkpoint's adapters were trained on other weights than model.from has. A
// checkpoint that records no base passes.
void refuse_other_base(const RunSpec&, const Checkpoint&);

// Patterns for lora.targets that choose these of `all` matrices: "*", "*.attn.q", or their names.
std::vector<std::string> target_patterns(const std::vector<std::string>& matrices,
                                         const std::vector<std::string>& all);

}  // namespace trireme
