// Keys of a measured run.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "published/score_reader.h"
#include "spec/suggest.h"

namespace trireme {
namespace {

constexpr std::string_view kRow[] = {"cluster", "id",         "kind",    "layout", "model",
                                     "note",    "precision",  "result",  "site",   "software",
                                     "source",  "source_url", "verified"};
constexpr std::string_view kModel[] = {"active_params", "ffn",  "heads",  "hidden", "kv_heads", "layers",
                                       "moe",           "name", "params", "seq",    "task",     "vocab"};
constexpr std::string_view kExperts[] = {"dense_layers", "expert_ffn", "experts", "shared", "topk"};
constexpr std::string_view kCluster[] = {
    "count", "gpu", "gpus_per_node", "interconnect", "network_gbits", "network_latency_us", "pods", "system"};
constexpr std::string_view kLayout[] = {"async_tp",
                                        "attention",
                                        "batch_per_dp",
                                        "compile",
                                        "cp",
                                        "dp",
                                        "dp_dcn",
                                        "ep",
                                        "fsdp",
                                        "global_batch",
                                        "global_batch_tokens",
                                        "grad_accum",
                                        "grads",
                                        "interleave",
                                        "micro_batch",
                                        "moments",
                                        "mp_mode",
                                        "norms",
                                        "num_microbatches",
                                        "offload",
                                        "pods",
                                        "pp",
                                        "proxy",
                                        "recompute",
                                        "schedule",
                                        "sequence_parallel",
                                        "tokens_per_batch",
                                        "tp",
                                        "zero",
                                        "zero_group"};
constexpr std::string_view kResult[] = {"act_pct_full",
                                        "act_pct_none",
                                        "act_pct_selective",
                                        "act_pct_seqpar",
                                        "act_pct_seqpar_selective",
                                        "aggregate_pflops",
                                        "bubble_rate_computed",
                                        "checkpoint_s",
                                        "checkpoint_tb",
                                        "days",
                                        "gpu_hours",
                                        "gpu_hours_per_T_tokens",
                                        "hfu",
                                        "layer_bwd_ms",
                                        "layer_fwd_ms",
                                        "max_params_measured_baseline_B",
                                        "max_params_measured_z1_B",
                                        "max_params_theory_baseline_B",
                                        "max_params_theory_z1_B",
                                        "max_params_theory_z2_B",
                                        "max_params_theory_z3_B",
                                        "memory_act_gib",
                                        "memory_alloc_gib",
                                        "memory_gb",
                                        "memory_gib",
                                        "memory_model_states_gb",
                                        "memory_params_opt_gib",
                                        "mfu",
                                        "mfu_causal",
                                        "mfu_derived",
                                        "mfu_no_attn",
                                        "mfu_noncausal",
                                        "normalized_throughput",
                                        "oom",
                                        "pretrain_gpu_hours",
                                        "samples_per_s_per_gpu",
                                        "simumax_predicted_alloc_gib",
                                        "simumax_predicted_step_s",
                                        "step_time_s",
                                        "step_time_s_derived",
                                        "tflops_per_gpu",
                                        "tflops_per_gpu_best_without_cp",
                                        "tflops_per_gpu_causal",
                                        "tflops_per_gpu_noncausal",
                                        "tokens",
                                        "tokens_per_day",
                                        "tokens_per_s",
                                        "tokens_per_s_per_gpu",
                                        "tokens_per_s_per_gpu_derived",
                                        "total_gpu_hours",
                                        "training_days_300B_tokens",
                                        "usd_at_2_per_hour"};

// The known key that takes the fewest edits.
std::string_view nearest_of(std::string_view key, std::span<const std::string_view> known) {
  return *std::min_element(known.begin(), known.end(), [&](std::string_view a, std::string_view b) {
    return edit_distance(key, a) < edit_distance(key, b);
  });
}

// typos: a key that is near none of the known ones is a fact that no forecast needs, such as another result.
enum class Refuses { all, typos };

void check(const RowJson& in, std::string_view where, std::string_view group,
           std::span<const std::string_view> known, Refuses refuses = Refuses::all) {
  const std::vector<std::string> names(known.begin(), known.end());
  for (const auto& [key, value] : in.items())
    if (std::find(known.begin(), known.end(), key) == known.end() &&
        (refuses == Refuses::all || !suggest(key, names).empty()))
      throw WrongField{fmt::format("{}: {}{}{}: unknown key; the nearest known is {}", where, group,
                                   group.empty() ? "" : ".", printable(key), nearest_of(key, known))};
}

}  // namespace

void check_keys(const RowJson& row, std::string_view where) {
  check(row, where, "", kRow, Refuses::typos);
  const auto inside = [&](const char* group, std::span<const std::string_view> known,
                          Refuses refuses = Refuses::all) {
    if (const auto g = row.find(group); g != row.end() && g->is_object())
      check(*g, where, group, known, refuses);
  };
  inside("model", kModel), inside("cluster", kCluster), inside("layout", kLayout);
  inside("result", kResult, Refuses::typos);
  if (const auto m = row.find("model"); m != row.end() && m->is_object())
    if (const auto moe = m->find("moe"); moe != m->end() && moe->is_object())
      check(*moe, where, "model.moe", kExperts);
}

}  // namespace trireme
