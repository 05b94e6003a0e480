#include "model/tensor_parallel.h"

#include <chrono>

namespace trireme {

void timed(const Ctx& ctx, const std::function<void()>& collective) {
  const auto begin = std::chrono::steady_clock::now();
  collective();
  if (ctx.groups.waited_s)
    *ctx.groups.waited_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void sum_over_tp(Ctx& ctx, const TensorPlace& tp, const Tensor& t) {
  if (tp.size == 1) return;
  collective(ctx, ctx.groups.tp_stream, [&](Stream s) { tp.group->all_reduce({.buf = t}, s); });
}

void gather_over_tp(Ctx& ctx, const TensorPlace& tp, const Tensor& own, const Tensor& full) {
  collective(ctx, ctx.groups.tp_stream,
             [&](Stream s) { tp.group->all_gather({.shard = own, .full = full}, s); });
}

Owned gathered_rows(Ctx& ctx, const TensorPlace& tp, const Tensor& x) {
  Owned full = ctx.activation({x.rows() * tp.size, x.cols()});
  gather_over_tp(ctx, tp, x, *full);
  return full;
}

Owned scattered_sum(Ctx& ctx, const TensorPlace& tp, const Tensor& summand) {
  Owned own = ctx.activation({summand.rows() / tp.size, summand.cols()});
  collective(ctx, ctx.groups.tp_stream,
             [&](Stream s) { tp.group->reduce_scatter({.full = summand, .shard = *own}, s); });
  return own;
}

void start_sum(Ctx& ctx, const TensorPlace& tp, const Tensor& t) {
  ctx.device.wait(ctx.groups.tp_stream, ctx.device.record(ctx.compute));
  tp.group->all_reduce({.buf = t}, ctx.groups.tp_stream);
}

void start_scattered_sum(Ctx& ctx, const TensorPlace& tp, const Tensor& summand, const Tensor& own) {
  ctx.device.wait(ctx.groups.tp_stream, ctx.device.record(ctx.compute));
  tp.group->reduce_scatter({.full = summand, .shard = own}, ctx.groups.tp_stream);
}

void wait_for_tp(Ctx& ctx, Event e) {
  if (ctx.groups.other_pass) (*ctx.groups.other_pass)();
  timed(ctx, [&] { ctx.device.wait(ctx.compute, e); });
}

}  // namespace trireme
