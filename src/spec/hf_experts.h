// What a config.json says of experts, and of the attention that DeepSeek's models have beside them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "spec/hf_object.h"
#include "spec/model_spec.h"

namespace trireme {

// What a dense model of the family would say stands in m already. notes: of what is read and not built.
// deepseek_v2 and deepseek_v3.
void read_deepseek(HfObject&, std::string_view file, ModelSpec& m, std::vector<std::string>* notes);
// mixtral, qwen2_moe and qwen3_moe. Balancing losses belong to training: here they are the run's.
void read_experts(HfObject&, std::string_view file, ModelSpec& m, std::vector<std::string>* notes);

}  // namespace trireme
