#pragma once
#include "cli/source.h"

namespace trireme::cli {

// config.json, model.safetensors and, when there is one, the run's tokenizer. The runner holds f32 weights.
void export_model(const LoadedModel&, const fs::path& folder, DType);

}  // namespace trireme::cli
