// Where each of trireme's parameters lies in a Hugging Face model.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "mesh/shape.h"
#include "spec/model_spec.h"

namespace trireme {

// Ours is [out, in] (or [out]). Theirs is [out_total, in], or [in, out_total] where transposed (GPT-2's
// Conv1D), and holds ours from output `begin` on: GPT-2 keeps q, k and v side by side in one tensor.
struct HfPlace {
  std::string ours;
  Shape shape;
  std::string theirs;  // without the prefix
  Shape their_shape;
  bool transposed = false;
  int64_t begin = 0;
  bool buffer = false;  // ParamDecl::buffer: f32 in every export
};

// Every parameter of the model once (the head only where it is not tied), in trireme's order. A spec that no
// Hugging Face model of its architecture can be is a bad request that names the key.
std::vector<HfPlace> hf_places(const ModelSpec&);

// What names of all tensors but the head begin with, in files saved from a model with a head ("transformer.",
// "model."); files saved from the bare model leave it out.
std::string_view hf_prefix(const ModelSpec&);
// The token embedding's name without the prefix: "wte.weight", "embed_tokens.weight".
std::string_view hf_embedding(const ModelSpec&);
inline constexpr std::string_view kHfHead = "lm_head.weight";  // never prefixed

// Buffers that older versions of transformers saved beside the weights and that follow from the
// configuration:
//   gpt2   h.{i}.attn.bias, h.{i}.attn.masked_bias             causal masks
//   others layers.{i}.self_attn.rotary_emb.inv_freq            rotary frequencies
// Takes a name without its prefix.
bool hf_is_buffer(const ModelSpec&, std::string_view name);

}  // namespace trireme
