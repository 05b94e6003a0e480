// Inference on several ranks (StagePasses::divided): rank 0 sends its calls to the others, and each does its
// part of the model.
#pragma once
#include <array>
#include <cstdint>
#include <span>

namespace trireme {

class CachedDecoder;
class Evaluator;
class StagePasses;

enum class InferenceCall : int64_t { open_cache, prefill, decode, move_text, evaluate, dismiss };
// Sends rank 0's call. Elsewhere, and if the model is not divided: no effect.
void lead(const StagePasses&, InferenceCall, const std::array<int64_t, 3>& numbers,
          std::span<const int32_t> ids = {}, std::span<const int32_t> more = {});
// Ranks above 0: does what rank 0 calls, until it calls `dismiss`.
void follow(const StagePasses&, Evaluator&, CachedDecoder&);

}  // namespace trireme
