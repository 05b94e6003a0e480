#include "model/dropout.h"

#include "base/rng.h"

namespace trireme {

DropoutMask Dropout::mask(const Ctx& ctx, int64_t per_sequence) const {
  if (!on(ctx)) return {};
  return {.rate = rate_,
          .key = rng_key(ctx.seed, uint64_t(ctx.step), name_),
          .first = ctx.batch.first_sequence * per_sequence};
}

void Dropout::forward(Ctx& ctx, const Tensor& x, const Tensor& y, const Tensor& residual) const {
  require(on(ctx), "dropout was asked for where it is off");
  DropoutMask m = mask(ctx, x.numel() * tp_.parts() / ctx.batch.sequences);
  m.first += x.numel() * tp_.part();
  ctx.k.run(DropoutArgs{.x = x, .residual = residual, .y = y, .mask = m}, ctx.compute);
}

Owned Dropout::backward(Ctx& ctx, const Tensor& dy) const {
  if (!on(ctx)) return {};
  Owned dx = ctx.activation(dy.shape);
  forward(ctx, dy, *dx);
  return dx;
}

}  // namespace trireme
