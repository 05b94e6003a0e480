// Requests of the search's tests: a Llama by its sizes on a device that is nobody's.
#pragma once
#include "search/search.h"

namespace trireme::test {

struct LlamaSizes {
  int64_t layers, hidden, heads, kv_heads, ffn, vocab, seq;
};
// Every constant is 1 but the launches of a layer, what a collective, a step and nodes add (nearly nothing),
// and bytes beside the states.
inline SearchRequest llama_request(const char* name, const LlamaSizes& s, const DeviceFigures& figures) {
  SearchRequest q;
  q.model = ModelSpec::of("llama");
  q.model.layers = s.layers, q.model.hidden = s.hidden, q.model.heads = s.heads;
  q.model.kv_heads = s.kv_heads, q.model.ffn = s.ffn, q.model.vocab = s.vocab;
  q.seq = s.seq, q.name = name, q.device = "test", q.figures = figures;
  q.model.finish(q.seq);
  q.fits.fill(1);
  q.fits[size_t(Fit::host)] = q.fits[size_t(Fit::host_moe)] = q.fits[size_t(Fit::each)] = 1e-4;
  q.fits[size_t(Fit::jitter)] = q.fits[size_t(Fit::step)] = q.fits[size_t(Fit::ring)] = 1e-6;
  q.fits[size_t(Fit::base)] = 1e8;
  return q;
}
// 12 layers on 12 devices of 3 GB, four of them near each other.
inline SearchRequest small_request() {
  SearchRequest q = llama_request("small", {12, 768, 12, 4, 3072, 50257, 1536},
                                  {.bf16 = 300e12,
                                   .memory = 3e9,
                                   .bandwidth = 2e12,
                                   .bus = 200e9,
                                   .near = 4,
                                   .nic = 20e9,
                                   .attention = 150e12});
  q.gpus = {12}, q.globals = {24}, q.best = 25;
  return q;
}
inline SearchRequest small_experts() {
  SearchRequest q = small_request();
  q.model = ModelSpec::of("mixtral");
  q.model.layers = 6, q.model.hidden = 512, q.model.heads = 8, q.model.kv_heads = 8, q.model.moe_ffn = 1024;
  q.model.experts = 6, q.model.experts_per_token = 2, q.model.vocab = 32000;
  q.model.finish(q.seq);
  q.gpus = {6};
  return q;
}

}  // namespace trireme::test
