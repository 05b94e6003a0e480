#include "spec/hf_harmless.h"

#include <algorithm>
#include <array>

namespace trireme {
namespace {

constexpr std::array<std::string_view, 4> kSuffixes = {"_token_id", "_token_ids", "_token_index", "_version"};
constexpr std::array<std::string_view, 5> kPrefixes = {"_", "classifier_", "summary_", "unsloth_",
                                                       "transformers."};

constexpr auto kNames = std::to_array<std::string_view>({
    // Provenance, files and types of files.
    "name_or_path",
    "torch_dtype",
    "dtype",
    "finetuning_task",
    "scale_fmt",
    "is_llama_config",
    "vocab_file",
    // The tokenizer's, and what it pads or cuts to.
    "tokenizer_class",
    "tokenizer_name",
    "model_max_length",
    "prefix",
    "n_ctx",
    "max_sequence_length",
    // Format of outputs, choice of kernel, distribution.
    "use_cache",
    "cache_implementation",
    "output_hidden_states",
    "output_attentions",
    "output_past",
    "return_dict",
    "use_return_dict",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "attn_implementation",
    "gradient_checkpointing",
    "chunk_size_feed_forward",
    "base_model_tp_plan",
    "base_model_pp_plan",
    "tp_plan",
    "pp_plan",
    "device_map",
    // Labels and losses of other tasks.
    "task_specific_params",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "loss_type",
    "is_decoder",
    "tie_encoder_decoder",
    "predict_special_tokens",
    // Defaults of text generation.
    "generation_config",
    "max_length",
    "min_length",
    "max_new_tokens",
    "min_new_tokens",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "penalty_alpha",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "output_scores",
    "return_dict_in_generate",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "renormalize_logits",
});

}  // namespace

bool is_harmless_hf_key(std::string_view key) {
  return std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](auto p) { return key.starts_with(p); }) ||
         std::any_of(kSuffixes.begin(), kSuffixes.end(), [&](auto s) { return key.ends_with(s); }) ||
         std::find(kNames.begin(), kNames.end(), key) != kNames.end();
}

}  // namespace trireme
