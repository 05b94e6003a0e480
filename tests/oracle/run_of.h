// The run that has the oracle's sizes, composed by src.
#pragma once
#include <string>

#include "oracle.h"
#include "runtime/composed_booking.h"
#include "spec/run_schedule.h"

namespace oracle {

// Units are padded to whole blocks for each shard, at most by this share.
inline constexpr double kPadding = 0.005;

struct RunOptions {
  int zero = 0;
  std::string schedule = "1f1b", recompute = "none";
  int64_t chunks = 1;
  int64_t experts = 0;  // experts per block; each token has 2, of a quarter of the MLP's width
};

// 16-bit weights, f32 gradients on 16-bit wires, Adam; SP if tp divides.
inline trireme::RunSpec run_of(const Sizes& z, const RunOptions& o) {
  trireme::RunSpec r;
  trireme::ModelSpec& m = r.model;
  m = trireme::ModelSpec::of(o.experts > 0 ? "mixtral" : "llama");
  m.layers = int64_t(z.L);
  m.hidden = int64_t(z.h);
  m.heads = int64_t(z.a);
  m.kv_heads = int64_t(z.k);
  m.ffn = int64_t(z.f);
  m.vocab = int64_t(z.V);
  m.tied = false;
  if (o.experts > 0) {
    m.experts = o.experts;
    m.experts_per_token = 2;
    m.moe_ffn = int64_t(z.f) / 4;
  }
  r.data.seq_len = int64_t(z.s);
  r.batch.micro = int64_t(z.b);
  r.batch.global = int64_t(z.b * z.m * z.D);
  trireme::LayoutSpec& l = r.layout;
  l.tp = int64_t(z.t);
  l.sequence = z.t > 1;
  l.pp = int64_t(z.p);
  l.cp = int64_t(z.c);
  l.ep = int64_t(z.e);
  l.dp = int64_t(z.D);
  l.zero = o.zero;
  l.cut = "even";
  l.schedule = o.schedule;
  l.chunks = o.chunks;
  l.recompute = o.recompute;
  r.precision.compute = "bf16";
  r.precision.grads = "f32";
  r.precision.reduce = "bf16";
  r.train.device = "cuda";
  m.finish(r.data.seq_len);
  return trireme::resolve(r, {.native_bf16 = true});
}

}  // namespace oracle
