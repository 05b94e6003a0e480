// A Llama of odd sizes that is booked in no time.
#pragma once
#include "spec/run_spec.h"

namespace trireme::test {

// Two sequences of 23 tokens a microbatch, f32, one thread a rank.
inline RunSpec tiny_llama(int64_t layers, int64_t microbatches, int64_t dp = 1) {
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = 61, r.model.layers = layers, r.model.hidden = 36, r.model.heads = 3, r.model.kv_heads = 1;
  r.model.ffn = 52;
  r.data.seq_len = 23;
  r.batch.micro = 2, r.batch.global = 2 * microbatches * dp;
  r.precision.compute = "f32", r.precision.grads = "f32", r.precision.reduce = "f32";
  r.layout.dp = dp;
  r.train.steps = 20, r.train.threads = 1;
  r.model.finish(r.data.seq_len);
  return r;
}

}  // namespace trireme::test
