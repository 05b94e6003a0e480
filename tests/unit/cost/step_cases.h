// A device, a model of 24 blocks and one of experts, and constants that add nothing: what tests of steps in
// closed form begin with.
#pragma once
#include "cost/flops.h"
#include "cost/step_time.h"

namespace trireme::testing {

inline DeviceFigures device() {
  return {.bf16 = 300e12,
          .fp8 = 600e12,
          .memory = 80e9,
          .bandwidth = 2e12,
          .bus = 200e9,
          .nic = 25e9,
          .attention = 190e12};
}

inline FitValues values() {
  FitValues v{};
  v.fill(1);
  v[size_t(Fit::host)] = v[size_t(Fit::host_moe)] = v[size_t(Fit::each)] = 1e-9;
  v[size_t(Fit::jitter)] = v[size_t(Fit::step)] = v[size_t(Fit::ring)] = 1e-12;
  return v;
}

inline StepCase one() {
  StepCase c;
  c.model = ModelSpec::of("llama");
  c.model.layers = 24, c.model.hidden = 3072, c.model.heads = 24, c.model.vocab = 51200;
  c.seq = 2048;
  c.model.finish(c.seq);
  return c;
}

inline StepCase experts() {
  StepCase c = one();
  c.model = ModelSpec::of("deepseek_v3");
  c.model.layers = 9, c.model.hidden = 1024, c.model.heads = 16, c.model.vocab = 5000;
  c.model.experts = 24, c.model.experts_per_token = 4, c.model.dense_layers = 3, c.model.moe_ffn = 512;
  c.model.finish(c.seq);
  c.dp = 12, c.zero = 1;
  return c;
}

inline double all_blocks(const ModelSpec& m) {
  return double(m.layers) * double(block_parameters(m));
}

// What a rank holds of a model on one stage: its part of the blocks and of both tables.
inline double held_parameters(const StepCase& c) {
  const ModelSpec& m = c.model;
  return all_blocks(m) / double(c.tp) + double(m.hidden * m.vocab) * 2 / double(c.tp);
}

}  // namespace trireme::testing
