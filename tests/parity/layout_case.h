// One layout of one tiny model, as text: what the fuzzer prints, and takes back.
#pragma once
#include <string>
#include <string_view>

#include "spec/run_spec.h"

namespace trireme::parity {

struct Case {
  std::string arch = "llama", compute = "f32", grads = "f32", reduce = "auto", schedule = "1f1b",
              optimizer = "adamw", moments = "f32",
              order = "ordered";  // of sums; hierarchical: two neighbours are a node
  std::string axes;               // layout.order, joined by +: "tp+cp+dp+pp"; empty: the default
  bool tied = false, reshard = true, last = true, sequence = false;
  bool turns = false;  // layout.interleave
  int64_t dp = 1, tp = 1, ep = 1, zero = 0, group = 0, prefetch = 1;
  int64_t experts = 5;  // of models that have them
  double buffer = 1.5;  // of rows that ranks of ep receive
  double aux = 0, capacity = 0;
  double bias_rate = 0;  // of routers that have a bias then
  std::string unit = "sequence";
  int64_t cp = 1, pp = 1, stages = 1;                 // stages: of each pipeline rank
  std::string cut = "cost";                           // of blocks into stages
  std::string method = "ring", placement = "zigzag";  // of cp
  bool overlap = true;                                // of its exchange with its blocks
  bool separate = false;                              // documents
  int64_t chunks = 1;                                 // of sums over tp
  int64_t heads = 3, kv_heads = 0;                    // 0: one, gpt2 as many as heads
  int64_t latent = 0;  // attention of llamas: 1 with queries straight from x, 2 with compressed ones
  int64_t micro = 2, microbatches = 1;  // of each replica
  int64_t layers = 2, hidden = 36, vocab = 61, seq = 23;
  double bucket_mb = 25, dropout = 0;
  std::string recompute = "none", again = "n1+n2+a";  // again: tensors
  int64_t blocks = 0;                                 // of a stage
  bool shard = false, offload = false;                // of kept inputs
  bool state = false;                                 // of the optimizer, offloaded
  std::string to = "file";                            // where what is offloaded waits
  std::string post = "off";                           // optimizer.post_validation
  std::string fp8 = "none";
  // Rank of adapters, and patterns of their matrices, joined by +.
  int64_t lora = 0;
  std::string targets = "*";
  double scale = 65536;  // of the loss in f16, of the first step
  bool operator==(const Case&) const = default;

  int64_t global() const { return dp * micro * microbatches; }
};

// "dp=3 zero=2 arch=gpt2 ...": what differs from the defaults. from_text takes the same, and fails on others.
std::string to_text(const Case&);
Case from_text(std::string_view);

// With its sizes finished, whatever is wrong with it.
RunSpec unchecked_run_of(const Case&);
// Resolved. The numbers of a run depend on the case's model, batch and precision, not on its layout.
RunSpec run_of(const Case&);
// The same model, global batch and precision on one rank, in microbatches of the same size; where a unit is
// of all replicas' microbatches, of theirs together.
RunSpec one_rank_of(const Case&);

}  // namespace trireme::parity
