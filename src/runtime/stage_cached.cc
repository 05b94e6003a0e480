// Generation: the training layers run forward over new tokens alone; attention finds the earlier ones' keys
// and values in the cache.
#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/microbatch.h"

namespace trireme {

KvCache::Sizes StageRunner::cache_sizes(const RunSpec& run, int64_t slots, int64_t capacity) {
  const ModelSpec& m = run.model;
  return {.blocks = m.layers,
          .slots = slots,
          .capacity = capacity,
          .kv_heads = m.kv_heads,
          .head_dim = m.head_dim,
          .v_head_dim = m.value_dim(),
          .dtype = dtype_from_name(run.precision.compute)};
}

void StageRunner::open_cache(int64_t slots, int64_t capacity) {
  require(slots >= 1 && capacity >= 1, "a cache holds at least one token of one text");
  require(capacity <= std::max(run_.model.max_positions, run_.data.seq_len),
          "a cache longer than the model's positions");
  cache_.reset();
  cache_ = std::make_unique<KvCache>(*arena_, cache_sizes(run_, slots, capacity));
}

// tokens and positions [texts * seq]; logits [rows, vocab] of the last `rows` of them.
void StageRunner::run_cached(int64_t texts, std::span<const int32_t> tokens,
                             std::span<const int32_t> positions, std::span<float> logits) {
  int64_t seq = int64_t(tokens.size()) / texts, rows = int64_t(logits.size()) / run_.model.vocab;
  Microbatch& m = microbatches_[0];
  load_batch(m, texts, seq, 0, 0, [&](int64_t, int64_t, const HostBatch& b) {
    for (size_t i = 0; i < tokens.size(); i++)
      b.tokens[i] = tokens[i], b.targets[i] = -1,
      b.positions[i] = positions.empty() ? int32_t(i) : positions[i];
  });
  Ctx ctx = context(m, false);
  ctx.cache = cache_.get();
  Owned y = ctx.activation({rows, run_.model.vocab}, DType::f32);
  ctx.logits = *y;
  forward_only(m, ctx);
  device_.download(logits.data(), *y);
  m.release();
}

void StageRunner::require_finite(std::span<const float> logits, const std::function<void()>& forward) {
  const auto is_finite = [](float f) { return std::isfinite(f); };
  if (device_.has_data() && !std::all_of(logits.begin(), logits.end(), is_finite))
    find_nonfinite_forward("generation", forward);
}

void StageRunner::prefill(int64_t slot, std::span<const int32_t> tokens, std::span<float> logits) {
  require(cache_ != nullptr && !tokens.empty() && int64_t(tokens.size()) <= cache_->sizes().capacity,
          "a text of no tokens, or of more than the cache holds");
  require(int64_t(logits.size()) == run_.model.vocab, "prefill gives one row of logits");
  const auto forward = [&] {
    cache_->begin(slot, 1, true);
    run_cached(1, tokens, {}, logits);
  };
  forward();
  require_finite(logits, std::ref(forward));  // a std::function of the captures would allocate
}

void StageRunner::decode(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                         std::span<float> logits) {
  auto texts = int64_t(tokens.size());
  require(cache_ != nullptr && texts > 0 && positions.size() == tokens.size(),
          "decoding takes a token and its position of each text");
  require(int64_t(logits.size()) == texts * run_.model.vocab, "decoding gives a row of logits a text");
  const auto forward = [&] {
    cache_->begin(0, texts, false);
    run_cached(texts, tokens, positions, logits);
  };
  forward();
  require_finite(logits, std::ref(forward));  // a std::function of the captures would allocate
}

void StageRunner::move_text(int64_t from, int64_t to, int64_t length) {
  for (int64_t b = 0; b < cache_->sizes().blocks; b++) {
    KvCache::Part src = cache_->slot(b, from, length), dst = cache_->slot(b, to, length);
    device_.copy(dst.k, src.k, compute_);
    device_.copy(dst.v, src.v, compute_);
  }
}

}  // namespace trireme
