#include "cost/flops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {
namespace {

ModelSpec gpt2(int64_t layers, int64_t hidden, int64_t heads) {
  ModelSpec m = ModelSpec::of("gpt2");
  m.vocab = 50257, m.layers = layers, m.hidden = hidden, m.heads = heads;
  m.finish(1024);
  return m;
}
ModelSpec llama(int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t ffn, int64_t vocab) {
  ModelSpec m = ModelSpec::of("llama");
  m.vocab = vocab, m.layers = layers, m.hidden = hidden, m.heads = heads, m.kv_heads = kv_heads, m.ffn = ffn;
  m.finish(4096);
  return m;
}

ModelSpec qwen(const char* arch, int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads,
               int64_t head_dim, int64_t ffn) {
  ModelSpec m = ModelSpec::of(arch);
  m.vocab = 151936, m.layers = layers, m.hidden = hidden, m.heads = heads, m.kv_heads = kv_heads;
  m.head_dim = head_dim, m.ffn = ffn;
  m.finish(4096);
  return m;
}

// Published counts.
TEST(Parameters, OfKnownModels) {
  EXPECT_EQ(parameters(gpt2(12, 768, 12)), 124439808);
  EXPECT_EQ(parameters(gpt2(24, 1024, 16)), 354823168);
  EXPECT_EQ(parameters(gpt2(36, 1280, 20)), 774030080);
  EXPECT_EQ(parameters(gpt2(48, 1600, 25)), 1557611200);
  EXPECT_EQ(parameters(llama(32, 4096, 32, 32, 11008, 32000)), 6738415616);   // Llama 2 7B
  EXPECT_EQ(parameters(llama(40, 5120, 40, 40, 13824, 32000)), 13015864320);  // Llama 2 13B
  EXPECT_EQ(parameters(llama(80, 8192, 64, 8, 28672, 32000)), 68976648192);   // Llama 2 70B
  EXPECT_EQ(parameters(llama(32, 4096, 32, 8, 14336, 128256)), 8030261248);   // Llama 3 8B
  ModelSpec m = llama(16, 2048, 32, 8, 8192, 128256);
  m.tied = true;
  EXPECT_EQ(parameters(m), 1235814400);  // Llama 3.2 1B
  m = qwen("qwen2", 24, 896, 14, 2, 64, 4864);
  m.tied = true;
  EXPECT_EQ(parameters(m), 494032768);  // Qwen2.5 0.5B
  m = qwen("qwen2", 28, 3584, 28, 4, 128, 18944);
  m.vocab = 152064;
  EXPECT_EQ(parameters(m), 7615616512);  // Qwen2.5 7B
  m = qwen("qwen3", 28, 1024, 16, 8, 128, 3072);
  m.tied = true;
  EXPECT_EQ(parameters(m), 596049920);                                            // Qwen3 0.6B
  EXPECT_EQ(parameters(qwen("qwen3", 36, 4096, 32, 8, 128, 12288)), 8190735360);  // Qwen3 8B
}

TEST(Parameters, OfKnownModelsOfExperts) {
  ModelSpec m = ModelSpec::of("mixtral");
  m.vocab = 32000, m.layers = 32, m.hidden = 4096, m.heads = 32, m.kv_heads = 8, m.ffn = 14336;
  m.finish(4096);
  EXPECT_EQ(parameters(m), 46702792704);  // Mixtral 8x7B
  m = ModelSpec::of("qwen2_moe");
  m.vocab = 151936, m.layers = 24, m.hidden = 2048, m.heads = 16, m.ffn = 5632, m.moe_ffn = 1408;
  m.finish(4096);
  EXPECT_EQ(m.shared_ffn, 5632);
  EXPECT_EQ(parameters(m), 14315784192);  // Qwen1.5-MoE-A2.7B
  m = qwen("qwen3_moe", 48, 2048, 32, 4, 128, 6144);
  m.moe_ffn = 768;
  EXPECT_EQ(parameters(m), 30532122624);  // Qwen3-30B-A3B
  // Of its 128 experts a token visits 8: 3.35 billion of the parameters, as its name says about.
  EXPECT_NEAR(forward_flops_per_token(m, 0) / 2 / 1e9, 3.0, 0.1);
}

// Of the papers: 15.7, 236 and 671 billion, of which a token uses 2.4, 21 and 37 (2405.04434, 2412.19437).
TEST(Parameters, OfDeepSeek) {
  ModelSpec m = ModelSpec::of("deepseek_v2");
  m.vocab = 102400, m.layers = 27, m.hidden = 2048, m.heads = 16, m.q_rank = 0;
  m.ffn = 10944, m.moe_ffn = 1408, m.shared_ffn = 2 * 1408;
  m.finish(4096);
  EXPECT_EQ(parameters(m), 15706484224);  // DeepSeek-V2-Lite
  EXPECT_NEAR(forward_flops_per_token(m, 0) / 2 / 1e9, 2.4, 0.1);
  m = ModelSpec::of("deepseek_v2");
  m.vocab = 102400, m.layers = 60, m.hidden = 5120, m.heads = 128, m.experts = 160;
  m.ffn = 12288, m.moe_ffn = 1536, m.shared_ffn = 2 * 1536;
  m.finish(4096);
  EXPECT_EQ(parameters(m), 235741434880);  // DeepSeek-V2
  EXPECT_NEAR(forward_flops_per_token(m, 0) / 2 / 1e9, 21, 0.5);
  m = ModelSpec::of("deepseek_v3");
  m.vocab = 129280, m.layers = 61, m.hidden = 7168, m.heads = 128;
  m.ffn = 18432, m.moe_ffn = m.shared_ffn = 2048;
  m.finish(4096);
  EXPECT_EQ(parameters(m), 671026404352);  // DeepSeek-V3, without layers that predict further tokens
  EXPECT_NEAR(forward_flops_per_token(m, 0) / 2 / 1e9, 37, 1);
}

TEST(Parameters, PartsMakeTheWhole) {
  ModelSpec m = gpt2(12, 768, 12);
  EXPECT_EQ(block_parameters(m), 7087872);
  EXPECT_EQ(embedding_parameters(m), 50257 * 768 + 1024 * 768);
  EXPECT_EQ(head_parameters(m), 2 * 768);
  EXPECT_EQ(12 * block_parameters(m) + embedding_parameters(m) + head_parameters(m), parameters(m));
  // Narayanan et al. 2021, eq. 2: 12 L h^2 (1 + 13/(12h) + (V+s)/(12Lh)), without the final norm's 2h.
  double h = 768, L = 12;
  EXPECT_DOUBLE_EQ(double(parameters(m) - 2 * 768),
                   12 * L * h * h * (1 + 13 / (12 * h) + (50257 + 1024.0) / (12 * L * h)));
}

// One by one, as tensors: an independent count for shapes that no published model has.
TEST(Parameters, EqualTheSumOfTensors) {
  uint64_t key = rng_key(5, 0, "parameters");
  for (uint64_t i = 0; i < 200; i++) {
    uint64_t n = i * 16;
    auto pick = [&](uint64_t high) { return int64_t(1 + below(key, n++, high)); };
    auto coin = [&] { return below(key, n++, 2) == 1; };
    ModelSpec m = ModelSpec::of(kArchs[below(key, n++, 4)]);
    m.vocab = pick(500), m.layers = pick(4), m.hidden = pick(50), m.kv_heads = pick(3);
    m.heads = m.kv_heads * pick(3), m.head_dim = pick(20), m.ffn = pick(90), m.max_positions = pick(40);
    m.attn_bias = coin(), m.mlp_bias = coin(), m.tied = coin();
    m.qkv_bias = coin(), m.qk_norm = coin();
    int64_t sum = m.vocab * m.hidden + (m.tied ? 0 : m.vocab * m.hidden);
    if (m.positions == "learned") sum += m.max_positions * m.hidden;
    int64_t norm = m.norm == "layer" ? 2 * m.hidden : m.hidden;
    sum += norm;
    for (int64_t l = 0; l < m.layers; l++) {
      sum += 2 * norm;
      auto linear = [&](int64_t in, int64_t out, bool bias) { sum += in * out + (bias ? out : 0); };
      linear(m.hidden, m.heads * m.head_dim, m.attn_bias || m.qkv_bias);
      linear(m.hidden, m.kv_heads * m.head_dim, m.attn_bias || m.qkv_bias);
      linear(m.hidden, m.kv_heads * m.head_dim, m.attn_bias || m.qkv_bias);
      if (m.qk_norm) sum += m.head_dim + m.head_dim;
      linear(m.heads * m.head_dim, m.hidden, m.attn_bias);
      if (m.activation == "swiglu") linear(m.hidden, m.ffn, m.mlp_bias);
      linear(m.hidden, m.ffn, m.mlp_bias);
      linear(m.ffn, m.hidden, m.mlp_bias);
    }
    EXPECT_EQ(parameters(m), sum) << i;
  }
}

TEST(Parameters, OverflowIsAnErrorNotANumber) {
  ModelSpec m = llama(65536, 16777216, 16777216, 16777216, 16777216, 2147483647);
  m.head_dim = 16777216;
  EXPECT_THROW(parameters(m), Error);
}

TEST(Flops, WorkedByHand) {
  // GPT-2 124M, 1,024 tokens. A block: q, k, v, o 4 * 2 * 768^2, feed-forward 2 * 2 * 768 * 3072, attention
  // 2 * 2 * 512 * 768 over half of the keys; 12 blocks; logits 2 * 768 * 50257.
  double block = 4718592 + 9437184 + 1572864;
  EXPECT_DOUBLE_EQ(forward_flops_per_token(gpt2(12, 768, 12), 1024), 12 * block + 77194752);
  EXPECT_DOUBLE_EQ(forward_flops_per_token(gpt2(12, 768, 12), 1024), 265938432);
  EXPECT_DOUBLE_EQ(train_flops_per_token(gpt2(12, 768, 12), 1024), 797815296);
  // Llama 3 8B, 8,192 tokens: kv_heads a quarter of heads, three matrices of 14,336.
  double q = 4096.0 * 4096, kv = 4096.0 * 1024, f = 4096.0 * 14336;
  EXPECT_DOUBLE_EQ(forward_flops_per_token(llama(32, 4096, 32, 8, 14336, 128256), 8192),
                   32 * (2 * (2 * q + 2 * kv + 3 * f) + 2.0 * 8192 * 4096) + 2 * 4096.0 * 128256);
}

// FORMULAS.md 8: 72 B s l h^2 (1 + s/(6h) + V/(12 l h)) counts attention whole; ours at half (s/(12h)).
TEST(Flops, MatchThePublishedFormOfGpt) {
  double B = 1, s = 2048, l = 96, h = 12288, V = 51200;
  ModelSpec m = ModelSpec::of("gpt2");
  m.vocab = 51200, m.layers = 96, m.hidden = 12288, m.heads = 96;
  m.finish(2048);
  double published = 72 * B * s * l * h * h * (1 + s / (12 * h) + V / (12 * l * h));
  EXPECT_NEAR(train_flops_per_token(m, 2048) * s, published, 1e-12 * published);
}

// Counted matrix by matrix, on odd shapes.
TEST(Flops, EqualTheSumOfProducts) {
  uint64_t key = rng_key(6, 0, "flops");
  for (uint64_t i = 0; i < 200; i++) {
    uint64_t n = i * 16;
    auto pick = [&](uint64_t high) { return int64_t(1 + below(key, n++, high)); };
    ModelSpec m = ModelSpec::of(i % 2 ? "gpt2" : "llama");
    m.vocab = pick(500), m.layers = pick(4), m.hidden = pick(50), m.kv_heads = pick(3);
    m.heads = m.kv_heads * pick(3), m.head_dim = pick(20), m.ffn = pick(90), m.max_positions = pick(40);
    int64_t seq = pick(100);
    double sum = 0;
    auto matmul = [&](int64_t in, int64_t out) { sum += 2.0 * double(in) * double(out); };
    for (int64_t l = 0; l < m.layers; l++) {
      matmul(m.hidden, (m.heads + 2 * m.kv_heads) * m.head_dim);
      matmul(m.heads * m.head_dim, m.hidden);
      for (int j = 0; j < (m.activation == "swiglu" ? 3 : 2); j++) matmul(m.hidden, m.ffn);
      for (int64_t head = 0; head < m.heads; head++) {
        matmul(m.head_dim, seq);  // q.k and p.v against every key, halved
      }
    }
    matmul(m.hidden, m.vocab);
    EXPECT_NEAR(forward_flops_per_token(m, seq), sum, 1e-9 * sum);
  }
}

}  // namespace
}  // namespace trireme
