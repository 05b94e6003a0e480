// Keys of a config.json that change no number of a forward pass.
#pragma once
#include <string_view>

namespace trireme {

// Returns whether transformers computes the same next-token logits whatever the key's value. These keys are:
// - private attributes, which begin with "_" (provenance, choice of kernel);
// - ids and versions (suffixes "_token_id", "_token_ids", "_token_index", "_version");
// - the attributes of PretrainedConfig that steer output formats, labels, text generation, files, devices;
// - settings of heads that no language model here has (classifier_*, summary_*).
// Any other key that no reader of the architecture knows may change the maths, and is an error.
bool is_harmless_hf_key(std::string_view key);

}  // namespace trireme
