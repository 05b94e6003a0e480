#include "spec/suggest.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme {
namespace {

std::string_view last_part(std::string_view name) {
  size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}
bool near(int distance, std::string_view meant) {
  return distance <= std::min(4, std::max(1, int(meant.size()) / 3));
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table: two edits back (for swaps), one back, and this one.
  std::vector<int> back2(b.size() + 1), back(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) back[j] = int(j);
  for (size_t i = 1; i <= a.size(); i++) {
    row[0] = int(i);
    for (size_t j = 1; j <= b.size(); j++) {
      row[j] = std::min({back[j] + 1, row[j - 1] + 1, back[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], back2[j - 2] + 1);
    }
    std::swap(back2, back);
    std::swap(back, row);
  }
  return back[b.size()];
}

std::string suggest(std::string_view name, std::span<const std::string> known) {
  if (name.size() > 100) return "";
  std::string best;
  int best_distance = 1000;
  auto consider = [&](const std::string& k, int distance) {
    if (distance < best_distance) best = k, best_distance = distance;
  };
  // The right section first: of equally near names the one in the section that was written wins.
  for (const std::string& k : known)
    if (int d = edit_distance(name, k); near(d, last_part(k))) consider(k, d);
  for (const std::string& k : known)
    if (int d = edit_distance(last_part(name), last_part(k)); near(d, last_part(k))) consider(k, d + 1);
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> known) {
  const std::string meant = suggest(name, known);
  return meant.empty() ? "" : ", did you mean " + meant + "?";
}

std::string elsewhere(std::string_view name, std::span<const std::string> known) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"top_k", "model.experts_per_token"},
      {"num_experts_per_tok", "model.experts_per_token"},
      {"moe_router_topk", "model.experts_per_token"},
      {"num_experts", "model.experts"},
      {"num_layers", "model.layers"},
      {"num_hidden_layers", "model.layers"},
      {"n_layer", "model.layers"},
      {"d_model", "model.hidden"},
      {"dim", "model.hidden"},
      {"n_embd", "model.hidden"},
      {"hidden_size", "model.hidden"},
      {"n_head", "model.heads"},
      {"num_heads", "model.heads"},
      {"num_attention_heads", "model.heads"},
      {"num_key_value_heads", "model.kv_heads"},
      {"intermediate_size", "model.ffn"},
      {"d_ff", "model.ffn"},
      {"vocab_size", "model.vocab"},
      {"block_size", "data.seq_len"},
      {"context_length", "data.seq_len"},
      {"seq_length", "data.seq_len"},
      {"batch_size", "batch.global"},
      {"global_batch_size", "batch.global"},
      {"micro_batch_size", "batch.micro"},
      {"rampup_batch_size", "batch.ramp"},
      {"learning_rate", "optimizer.lr"},
      {"warmup_steps", "optimizer.warmup"},
      {"warmup_iters", "optimizer.warmup"},
      {"grad_clip", "optimizer.clip_norm"},
      {"max_grad_norm", "optimizer.clip_norm"},
      {"max_steps", "train.steps"},
      {"max_iters", "train.steps"},
      {"train_iters", "train.steps"}};
  for (const auto& [other, ours] : kNames)
    if (last_part(name) == other && std::find(known.begin(), known.end(), ours) != known.end())
      return std::string(ours);
  return "";
}

std::string joined(std::span<const std::string_view> names) {
  std::string out;
  for (std::string_view n : names) out += (out.empty() ? "" : ", ") + std::string(n);
  return out;
}

}  // namespace trireme
