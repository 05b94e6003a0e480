#include "runtime/cached_decoder.h"

#include <algorithm>
#include <cmath>

#include "base/rounding.h"
#include "runtime/inference_calls.h"
#include "runtime/nonfinite.h"

namespace trireme {
namespace {
constexpr Axis kAnswers[] = {Axis::pp, Axis::cp};
}

CachedDecoder::CachedDecoder(StageMemory& memory, StagePasses& passes, const Program& forward)
    : memory_(memory),
      passes_(passes),
      forward_(forward),
      run_(passes.run_spec()),
      device_(passes.device()),
      compute_(device_.stream("compute")) {
  const Sharing& s = passes.sharing();
  if (passes.divided() && s.pp.size * s.cp.size > 1) answers_ = &passes.comms()->along(kAnswers);
}

KvCache::Sizes CachedDecoder::cache_sizes(int64_t slots, int64_t capacity) const {
  const ModelSpec& m = run_.model;
  int64_t blocks = 0;
  for (const StageShape& s : passes_.shape().stages)
    blocks += int64_t(s.last - s.first) - s.embedding - s.head;
  return {.blocks = blocks,
          .slots = slots,
          .capacity = capacity,
          .kv_heads = std::max<int64_t>(1, m.kv_heads / passes_.sharing().tp.size),
          .head_dim = m.head_dim,
          .v_head_dim = m.value_dim(),
          .dtype = dtype_from_name(run_.precision.compute)};
}

void CachedDecoder::open_cache(int64_t slots, int64_t capacity) {
  lead(passes_, InferenceCall::open_cache, {slots, capacity});
  require(slots >= 1 && capacity >= 1, "a cache holds at least one token of one text");
  require(capacity <= std::max(run_.model.max_positions, run_.data.seq_len),
          "a cache longer than the model's positions");
  cache_.reset();
  cache_ = std::make_unique<KvCache>(memory_.arena(), cache_sizes(slots, capacity));
}

// tokens and positions [texts * seq]; logits [rows, vocab] of the last `rows` of them. positions: empty for a
// text that begins here. Over cp a text that begins is cut into equal parts, the last one completed with
// copies of its last token, which no token sees. Later tokens are the same on all ranks of cp.
void CachedDecoder::run(int64_t texts, std::span<const int32_t> tokens, std::span<const int32_t> positions,
                        std::span<float> logits) {
  const bool begins = positions.empty();
  const ContextPlace place = begins ? passes_.sharing().layers.cp.place() : ContextPlace{};
  const int64_t n = int64_t(tokens.size()) / texts, seq = round_up(n, place.size);
  const int64_t rows = int64_t(logits.size()) / run_.model.vocab, part = seq / place.size;
  const auto fill = [&](int64_t, int64_t, const HostBatch& b) {
    for (size_t i = 0; i < b.tokens.size(); i++) {
      const size_t from = std::min(i, tokens.size() - 1);
      b.tokens[i] = tokens[from];
      b.targets[i] = -1;
      b.positions[i] = begins ? int32_t(from) : positions[from];
    }
  };
  passes_.load(texts, seq, std::ref(fill), place);
  Ctx ctx = passes_.forward_context();
  ctx.cache = cache_.get();
  if (!begins) ctx.groups.cp = {};
  Owned y = ctx.activation({rows, run_.model.vocab}, DType::f32);
  ctx.logits = *y;
  if (place.size > 1) ctx.logits_row = (n - 1) % part;
  passes_.forward_only(ctx, forward_);
  if (answers_) answers_->broadcast({.buf = *y, .root = answering_rank(int((n - 1) / part))}, compute_);
  device_.download(logits.data(), *y);
  passes_.loaded().release();
}

// The place of the rank with the head and this part of a text, in the group that answers_ joins.
int CachedDecoder::answering_rank(int cp_part) const {
  const Mesh& mesh = passes_.comms()->mesh();
  const std::vector<int> group = mesh.group(passes_.comms()->rank(), kAnswers);
  const auto at = std::find_if(group.begin(), group.end(), [&](int rank) {
    return mesh.coord(rank, Axis::pp) == passes_.sharing().head_rank() &&
           mesh.coord(rank, Axis::cp) == cp_part;
  });
  return int(at - group.begin());
}

void CachedDecoder::require_finite(std::span<const float> logits, const std::function<void()>& forward) {
  const auto is_finite = [](float f) { return std::isfinite(f); };
  if (device_.has_data() && !std::all_of(logits.begin(), logits.end(), is_finite))
    find_nonfinite_forward("generation", memory_, passes_, forward);
}

void CachedDecoder::prefill(int64_t slot, std::span<const int32_t> tokens, std::span<float> logits) {
  require(cache_ != nullptr && !tokens.empty() && int64_t(tokens.size()) <= cache_->sizes().capacity,
          "a text of no tokens, or of more than the cache holds");
  require(int64_t(logits.size()) == run_.model.vocab, "prefill gives one row of logits");
  lead(passes_, InferenceCall::prefill, {slot}, tokens);
  const auto forward = [&] {
    cache_->begin(slot, 1, int64_t(tokens.size()), true);
    run(1, tokens, {}, logits);
  };
  forward();
  require_finite(logits, std::ref(forward));  // a std::function of the captures would allocate
}

void CachedDecoder::decode(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                           std::span<float> logits) {
  auto texts = int64_t(tokens.size());
  require(cache_ != nullptr && texts > 0 && positions.size() == tokens.size(),
          "decoding takes a token and its position of each text");
  require(int64_t(logits.size()) == texts * run_.model.vocab, "decoding gives a row of logits a text");
  lead(passes_, InferenceCall::decode, {}, tokens, positions);
  const auto forward = [&] {
    cache_->begin(0, texts, 1, false);
    run(texts, tokens, positions, logits);
  };
  forward();
  require_finite(logits, std::ref(forward));  // a std::function of the captures would allocate
}

void CachedDecoder::move_text(int64_t from, int64_t to, int64_t length) {
  lead(passes_, InferenceCall::move_text, {from, to, length});
  for (int64_t b = 0; b < cache_->sizes().blocks; b++) {
    KvCache::Part src = cache_->slot(b, from, length), dst = cache_->slot(b, to, length);
    device_.copy(dst.k, src.k, compute_);
    device_.copy(dst.v, src.v, compute_);
  }
}

}  // namespace trireme
