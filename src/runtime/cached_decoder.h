// Generation: the training layers run forward over new tokens alone; attention finds the earlier ones' keys
// and values in the cache.
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "model/kv_cache.h"
#include "runtime/stage_passes.h"

namespace trireme {

// Texts in the slots of a key/value cache.
class CachedDecoder {
 public:
  // forward: the program of a forward pass (lower_forward). All outlive this.
  CachedDecoder(StageMemory&, StagePasses&, const Program& forward);

  // Memory for `slots` texts of at most `capacity` tokens; the one opened before is given up.
  void open_cache(int64_t slots, int64_t capacity);
  // Sizes of this rank's blocks and heads.
  KvCache::Sizes cache_sizes(int64_t slots, int64_t capacity) const;
  const KvCache& cache() const { return *cache_; }
  // A new text in `slot`, in place of its text before: logits f32 [vocab] of the token after its last. The
  // arithmetic is that of Evaluator::logits(), so are the bits.
  void prefill(int64_t slot, std::span<const int32_t> tokens, std::span<float> logits);
  // The next token of each text in slots 0, 1, ...: positions[i] tokens of text i came before. logits f32
  // [texts, vocab]. A text's bits do not depend on the others', up to cpu::kFewRows texts.
  void decode(std::span<const int32_t> tokens, std::span<const int32_t> positions, std::span<float> logits);
  // The first `length` tokens of the text in `from`, to `to`.
  void move_text(int64_t from, int64_t to, int64_t length);

 private:
  void run(int64_t texts, std::span<const int32_t> tokens, std::span<const int32_t> positions,
           std::span<float> logits);
  int answering_rank(int cp_part) const;
  // Repeats a forward pass whose logits are not all finite, to name the cause.
  void require_finite(std::span<const float> logits, const std::function<void()>& forward);

  StageMemory& memory_;
  StagePasses& passes_;
  const Program& forward_;
  const RunSpec& run_;
  Device& device_;
  Stream compute_;
  Communicator* answers_ = nullptr;  // ranks of pp and cp, one of which has the logits; null: this one has
  std::unique_ptr<KvCache> cache_;
};

}  // namespace trireme
