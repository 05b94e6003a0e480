#include "model/dropout.h"

#include "base/rng.h"

namespace trireme {

DropoutMask Dropout::mask(const Ctx& ctx, int64_t per_sequence) const {
  if (!on(ctx)) return {};
  return {.rate = rate_,
          .key = rng_key(ctx.seed, uint64_t(ctx.step), name_),
          .first = ctx.batch.first_sequence * per_sequence};
}

// Rows and keys are those of whole sequences; a ring says which of them its blocks are.
DropoutMask Dropout::probabilities(const Ctx& ctx, int64_t heads, int64_t first) const {
  const int64_t seq = ctx.batch.seq * ctx.groups.cp.place().size;
  DropoutMask m = mask(ctx, heads * seq * seq);
  if (m) m.heads = heads, m.first += first * seq * seq;
  return m;
}

void Dropout::forward(Ctx& ctx, const Tensor& x, const Tensor& y, const Tensor& residual) const {
  require(on(ctx), "dropout was asked for where it is off");
  const ContextPlace cp = ctx.groups.cp.place();
  DropoutMask m = mask(ctx, x.numel() * tp_.parts() / ctx.batch.sequences * cp.size);
  if (cp.size > 1) {
    m.part = ctx.batch.seq, m.seq = m.part * cp.size;
    m.rows = cp.runs(m.seq, cp.rank).from(x.rows() * tp_.part());
  } else {
    m.first += x.numel() * tp_.part();
  }
  ctx.k.run(DropoutArgs{.x = x, .residual = residual, .y = y, .mask = m}, ctx.compute);
}

Owned Dropout::backward(Ctx& ctx, const Tensor& dy) const {
  if (!on(ctx)) return {};
  Owned dx = ctx.activation(dy.shape);
  forward(ctx, dy, *dx);
  return dx;
}

}  // namespace trireme
