// Runs drawn at random, of every layout and feature that takes memory or issues operations.
#pragma once
#include <fmt/format.h>

#include <random>
#include <string>

#include "spec/run_spec.h"

namespace trireme {

class DrawnRuns {
 public:
  explicit DrawnRuns(uint64_t seed) : random_(seed) {}
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return *(all.begin() + std::ptrdiff_t(std::uniform_int_distribution<size_t>(0, all.size() - 1)(random_)));
  }
  static void set_microbatches(RunSpec& r, int64_t n) { r.batch.global = r.layout.dp * r.batch.micro * n; }
  bool chance(int percent) { return std::uniform_int_distribution<int>(1, 100)(random_) <= percent; }

  // Odd sizes; every feature that takes memory.
  RunSpec run() {
    RunSpec r;
    const char* arch = one_of({"llama", "llama", "gpt2", "qwen3", "mixtral", "deepseek_v2", "deepseek_v3"});
    r.model = ModelSpec::of(arch);
    model(r.model, arch);
    r.data.seq_len = one_of<int64_t>({16, 24, 48});
    if (chance(15)) r.data.documents = "separate";
    r.train.device = one_of({"cpu", "cuda"});
    layout(r);
    r.precision.compute = one_of({"bf16", "bf16", "f32"});
    if (r.precision.compute == "bf16") r.precision.grads = one_of({"f32", "bf16"});
    r.precision.reduce = one_of({"f32", "bf16"});
    if (chance(25)) r.precision.fp8 = one_of({"current", "delayed", "block"});
    if (!r.layout.offloads_state() && chance(30)) r.optimizer.name = "muon";
    if (!r.layout.offloads_state() && chance(15)) r.lora.rank = 3;
    r.train.dir = "never-written";
    r.model.finish(r.data.seq_len);
    return r;
  }

 private:
  void model(ModelSpec& m, std::string_view arch) {
    m.vocab = one_of<int64_t>({61, 300, 1500});
    m.layers = one_of<int64_t>({4, 7, 8});
    m.hidden = 48;
    m.heads = 4;
    m.kv_heads = arch == "gpt2" || m.latent() ? 4 : 2;
    m.ffn = 136;
    m.tied = chance(40);
    if (m.latent()) {
      m.kv_rank = 10;
      m.q_rank = arch == "deepseek_v3" ? 14 : 0;
      m.nope_head_dim = 6;
      m.rope_head_dim = 4;
      m.v_head_dim = 8;
      m.head_dim = 10;
      m.dense_layers = 1;
      m.shared_ffn = 24;
    }
    if (m.moe()) {
      m.experts = 4;
      m.experts_per_token = 2;
      m.moe_ffn = 40;
      m.expert_groups = m.top_groups = 1;
    }
    if (chance(20)) m.resid_pdrop = 0.1;
  }
  void layout(RunSpec& r) {
    LayoutSpec& l = r.layout;
    l.tp = one_of<int64_t>({1, 1, 2, 4});
    l.cp = one_of<int64_t>({1, 1, 1, 2});
    l.dp = one_of<int64_t>({1, 2, 2, 4});
    l.pp = one_of<int64_t>({1, 2, 3, 4});
    if (r.model.moe()) l.ep = one_of<int64_t>({1, 2, 4});
    l.sequence = l.tp > 1 && chance(50);
    if (chance(30)) l.cp_method = "ulysses";
    l.cp_overlap = chance(60);
    if (l.dp * l.cp > 1) l.zero = one_of<int64_t>({0, 1, 2, 3});
    if (l.zero > 0 && l.dp == 4) l.shard_group = one_of<int64_t>({0, 2});
    l.prefetch = one_of<int64_t>({0, 1, 3});
    l.reshard_last = chance(50);
    l.reshard_after_forward = chance(70);
    l.tp_chunks = one_of<int64_t>({1, 1, 3});
    l.interleave = chance(30);
    if (chance(50)) l.bucket_mb = 0.02;
    if (l.pp > 1)
      l.schedule = one_of({"1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min",
                           "dualpipe", "dualpipe-v"});
    if (l.schedule == "dualpipe" && (l.pp % 2 != 0 || l.pp * 2 > r.model.layers)) l.schedule = "1f1b";
    if (l.schedule == "interleaved" || l.schedule.starts_with("zb-v") || l.schedule.starts_with("v-") ||
        l.schedule == "dualpipe-v")
      l.chunks = 2;
    l.recompute = one_of({"none", "selective", "full", "full"});
    if (l.recompute != "none" && chance(20)) {
      l.recompute_blocks = 1;
      l.recompute_rest = Texts::of({"n1"});
    }
    l.recompute_shard = l.recompute == "full" && l.tp > 1 && !l.sequence && chance(50);
    if (chance(50)) l.offload = l.recompute == "full" ? one_of({"inputs", "state", "all"}) : "state";
    if (l.offloads_state()) l.offload_mb = 0.01;
    if (l.offload != "none" && r.train.device == "cuda") l.offload_to = "host";
    r.batch.micro = one_of<int64_t>({1, 1, 2, 4});
    set_microbatches(r, (l.pp > 1 ? l.pp : 1) * one_of<int64_t>({1, 2, 3}));
  }
  std::mt19937_64 random_;
};

inline std::string layout_text(const RunSpec& r) {
  const LayoutSpec& l = r.layout;
  return fmt::format(
      "{} {} layers, dp {} tp {} pp {} cp {} ep {} zero {} {} micro {} of {}, recompute {}{}, offload {}, "
      "fp8 {}, {}",
      r.model.arch, r.model.layers, l.dp, l.tp, l.pp, l.cp, l.ep, l.zero, l.schedule, r.batch.micro,
      r.microbatches(), l.recompute, l.interleave ? ", interleaved" : "", l.offload, r.precision.fp8,
      r.optimizer.name);
}

}  // namespace trireme
