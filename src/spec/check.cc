// Contradictions between the values of a run. A text continues "KEY: VALUE" (Problem).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "spec/batch_ramp.h"
#include "spec/check_recorded.h"
#include "spec/recompute.h"
#include "spec/toml.h"

namespace trireme {
namespace {

using Problems = std::vector<Problem>;
using Wide = __int128;  // products of a few in-range sizes fit

void check_model(const ModelSpec& m, Problems& out) {
  auto wrong = [&](std::vector<std::string> keys, std::string text) {
    for (std::string& k : keys) k = "model." + k;
    out.push_back({std::move(keys), std::move(text)});
  };
  if (m.heads < 1 || m.kv_heads < 1)
    return wrong({"heads", "kv_heads"}, "needs at least one head of each kind");
  if (m.heads % m.kv_heads != 0)
    wrong({"kv_heads", "heads"}, fmt::format("does not divide heads = {}", m.heads));
  if (m.tied && m.embed_std > 0)
    wrong({"embed_std", "tied"}, "has no effect with tied = true, where the head has the same weights");
  if (m.tied && m.head_std > 0)
    wrong({"head_std", "tied"}, "has no effect with tied = true, where the embedding has the same weights");
  if (m.head_dim == 0)
    wrong({"heads", "hidden"},
          fmt::format("does not divide hidden = {}; change one, or give head_dim", m.hidden));
  if (m.positions == "rope" && !m.latent() && m.head_dim % 2 != 0)
    wrong({"head_dim", "heads", "hidden"}, "is odd; rotary positions turn pairs, so it must be even");
  const bool known = ModelSpec::refusal(m.arch).empty();
  if (m.positions != "rope" && m.rope_theta != (known ? ModelSpec::of(m.arch) : ModelSpec()).rope_theta)
    wrong({"rope_theta", "positions", "arch"},
          fmt::format("has no effect on {} positions; remove the line, or give positions = \"rope\"",
                      m.positions));
  if (m.attn_bias && m.qkv_bias)
    wrong({"qkv_bias", "attn_bias"}, "adds nothing to attn_bias = true; give one of them");
  const RopeScaling& r = m.rope_scaling;
  if (r.type != "none" && m.positions != "rope")
    wrong({"rope_scaling.type", "positions"},
          fmt::format("has no effect on {} positions; positions = \"rope\" or type = \"none\"", m.positions));
  if (r.type == "none" && r.factor != 1)
    wrong({"rope_scaling.factor", "rope_scaling.type"},
          "has no effect with type = \"none\"; give type = \"linear\", \"llama3\" or \"yarn\"");
  if (r.type == "llama3" && !(r.low_freq_factor < r.high_freq_factor))
    wrong({"rope_scaling.low_freq_factor", "rope_scaling.high_freq_factor"},
          fmt::format("must be below high_freq_factor = {}", r.high_freq_factor));
  if (r.type == "yarn" && !(r.beta_slow < r.beta_fast))
    wrong({"rope_scaling.beta_slow", "rope_scaling.beta_fast"},
          fmt::format("must be below beta_fast = {}", r.beta_fast));
  for (auto [key, value] : {std::pair{"mscale", r.mscale}, std::pair{"mscale_all_dim", r.mscale_all_dim},
                            std::pair{"attention_factor", r.attention_factor}})
    if (value != 0 && r.type != "yarn")
      wrong({"rope_scaling." + std::string(key), "rope_scaling.type"},
            fmt::format("has no effect with type = {}; give type = \"yarn\"", shown(r.type)));
}

void check_latent(const ModelSpec& m, Problems& out) {
  auto wrong = [&](std::vector<std::string> keys, std::string text) {
    for (std::string& k : keys) k = "model." + k;
    out.push_back({std::move(keys), std::move(text)});
  };
  if (!m.latent()) {
    for (auto [key, value] :
         {std::pair{"q_rank", m.q_rank}, std::pair{"nope_head_dim", m.nope_head_dim},
          std::pair{"rope_head_dim", m.rope_head_dim}, std::pair{"v_head_dim", m.v_head_dim},
          std::pair{"rope_interleaved", int64_t(m.rope_interleaved)}})
      if (value != 0) wrong({key, "kv_rank"}, "has no effect with kv_rank = 0; give kv_rank");
    return;
  }
  if (m.nope_head_dim < 1)
    wrong({"nope_head_dim", "kv_rank"}, ": a latent key has such columns; give at least 1");
  if (m.rope_head_dim < 2 || m.rope_head_dim % 2 != 0)
    wrong({"rope_head_dim", "kv_rank"}, ": rotary positions turn pairs; give an even number from 2");
  if (m.head_dim != m.nope_head_dim + m.rope_head_dim)
    wrong({"head_dim", "nope_head_dim", "rope_head_dim"},
          fmt::format("is not nope_head_dim + rope_head_dim = {}; remove the line",
                      m.nope_head_dim + m.rope_head_dim));
  if (m.kv_heads != m.heads)
    wrong({"kv_heads", "kv_rank"},
          fmt::format(": latent keys and values are of every head; give heads = {}", m.heads));
  if (m.positions != "rope") wrong({"positions", "kv_rank"}, "has no effect with kv_rank; give \"rope\"");
  if (m.qkv_bias) wrong({"qkv_bias", "kv_rank"}, "has no effect with kv_rank; give attn_bias");
  if (m.qk_norm)
    wrong({"qk_norm", "kv_rank"}, ": latent attention normalises what it compresses; give false");
  if (m.attn_bias && m.q_rank == 0)
    wrong({"attn_bias", "q_rank"}, ": biases are of what compresses, and q_rank = 0 compresses no queries");
}

void check_experts(const ModelSpec& m, Problems& out) {
  auto wrong = [&](std::vector<std::string> keys, std::string text) {
    for (std::string& k : keys) k = "model." + k;
    out.push_back({std::move(keys), std::move(text)});
  };
  if (!m.moe()) {
    for (auto [key, value] :
         {std::pair{"experts_per_token", m.experts_per_token}, std::pair{"moe_ffn", m.moe_ffn},
          std::pair{"shared_ffn", m.shared_ffn}, std::pair{"shared_gate", int64_t(m.shared_gate)},
          std::pair{"dense_layers", m.dense_layers}, std::pair{"expert_step", m.expert_step - 1},
          std::pair{"expert_groups", m.expert_groups - 1}, std::pair{"router_bias", int64_t(m.router_bias)}})
      if (value != 0) wrong({key, "experts"}, "has no effect with experts = 0; give experts");
    return;
  }
  if (m.experts_per_token > m.experts)
    wrong({"experts_per_token", "experts"},
          fmt::format("is more than experts = {}; give at most that", m.experts));
  if (m.activation != "swiglu")
    wrong({"activation", "experts"}, "is not what experts compute; give \"swiglu\"");
  if (m.mlp_bias) wrong({"mlp_bias", "experts"}, ": experts have no biases; give false");
  if (m.expert_blocks() == 0)
    wrong({"dense_layers", "expert_step", "layers"}, "leaves no block of experts; give less, or experts = 0");
  if (m.experts % m.expert_groups != 0)
    return wrong({"expert_groups", "experts"}, fmt::format("does not divide experts = {}", m.experts));
  if (m.top_groups > m.expert_groups)
    wrong({"top_groups", "expert_groups"},
          fmt::format("is more than expert_groups = {}; give at most that", m.expert_groups));
  else if (m.experts_per_token <= m.experts &&
           m.experts_per_token > m.top_groups * (m.experts / m.expert_groups))
    wrong({"experts_per_token", "top_groups", "expert_groups"},
          fmt::format("is more than the {} experts of top_groups = {} groups",
                      m.top_groups * (m.experts / m.expert_groups), m.top_groups));
  if (m.group_worth == "pair" && m.expert_groups > 1 && m.experts / m.expert_groups < 2)
    wrong({"group_worth", "expert_groups"}, "needs groups of at least two experts; give \"largest\"");
}

void check_routers(const RunSpec& run, Problems& out) {
  const MoeSpec& e = run.moe;
  for (auto [key, value] :
       {std::pair{"aux_loss", e.aux_loss}, std::pair{"z_loss", e.z_loss}, std::pair{"capacity", e.capacity}})
    if (value != 0 && !run.model.moe())
      out.push_back({{"moe." + std::string(key), "model.experts"},
                     "has no effect with model.experts = 0; give experts, or 0"});
  if (e.bias_rate != 0 && !run.model.router_bias)
    out.push_back({{"moe.bias_rate", "model.router_bias"},
                   "has no effect with model.router_bias = false; give true, or 0"});
}

void check_sizes(const RunSpec& run, Problems& out) {
  const ModelSpec& m = run.model;
  if (m.max_positions > 0 && run.data.seq_len > m.max_positions)
    out.push_back(
        {{"data.seq_len", "model.max_positions"},
         fmt::format("is longer than model.max_positions = {}; give at most that", m.max_positions)});
  // An upper bound of the parameters, and of the largest activation of a microbatch, in elements. Bytes of
  // either, with optimizer state, stay far below 2^63.
  const Wide latent =
      Wide(m.kv_rank + m.q_rank + m.hidden) *
      (Wide(m.heads) * (m.head_dim + 2 * m.value_dim()) + m.kv_rank + m.q_rank + m.rope_head_dim);
  Wide width = Wide(m.hidden) * (2 * m.q_size() + 2 * m.kv_size() + 3 * Wide(m.ffn) + 8) + 4 * Wide(m.ffn) +
               (m.latent() ? latent : 0) +
               Wide(m.hidden) * (Wide(m.experts) * (3 * Wide(m.moe_ffn) + 1) + 3 * Wide(m.shared_ffn) + 1);
  Wide params = m.layers * width + Wide(m.hidden) * (2 * Wide(m.vocab) + m.max_positions + 2);
  if (params > Wide(1) << 54)
    out.push_back({{"model.hidden", "model.layers", "model.vocab", "model.ffn"},
                   fmt::format(": the model has about {:.1e} parameters; at most 1.8e16 can be counted",
                               double(params))});
  Wide rows = Wide(run.batch.micro) * run.data.seq_len;
  Wide columns =
      std::max({Wide(m.vocab), 2 * Wide(m.ffn), Wide(m.q_size()) + 2 * m.kv_size() + m.o_size(),
                Wide(m.q_rank) + m.kv_rank, 2 * Wide(m.experts_per_token) * std::max(m.moe_ffn, m.hidden),
                2 * Wide(m.shared_ffn), Wide(m.experts)});
  if (rows * columns > Wide(1) << 54)
    out.push_back(
        {{"batch.micro", "data.seq_len"},
         fmt::format("sequences of {} tokens make an activation of {:.1e} numbers; at most 1.8e16 can "
                     "be counted",
                     run.data.seq_len, double(rows * columns))});
  Wide tokens = Wide(run.batch.global) * run.data.seq_len * run.train.steps;
  if (tokens > Wide(1) << 62)
    out.push_back(
        {{"train.steps", "batch.global", "data.seq_len"},
         fmt::format(": the run has {:.1e} tokens; at most 4.6e18 can be counted", double(tokens))});
}

void check_tensor_parallel(const RunSpec& run, Problems& out) {
  const ModelSpec& m = run.model;
  const int64_t tp = run.layout.tp, seq = run.data.seq_len;
  auto wrong = [&](std::vector<std::string> keys, std::string text) {
    out.push_back({std::move(keys), std::move(text)});
  };
  if (run.layout.sequence && tp == 1)
    wrong({"layout.sequence", "layout.tp"}, "has no effect with tp = 1; give false, or tp above 1");
  const int64_t cp = run.layout.cp;
  if (run.layout.sequence && cp == 1 && seq % tp != 0)
    wrong({"layout.sequence", "layout.tp", "data.seq_len"},
          fmt::format("divides sequences among tp = {} ranks, and data.seq_len = {} is not a multiple of it",
                      tp, seq));
  if (run.layout.sequence && cp > 1 && seq % (cp * tp) != 0)
    wrong({"layout.sequence", "layout.tp", "layout.cp", "data.seq_len"},
          fmt::format("divides sequences among cp * tp = {} * {} ranks, and data.seq_len = {} is not a "
                      "multiple of it",
                      cp, tp, seq));
  if (tp == 1 || m.heads < 1 || m.kv_heads < 1) return;
  if (m.heads % tp != 0)
    wrong({"layout.tp", "model.heads"}, fmt::format("does not divide model.heads = {}", m.heads));
  else if (m.kv_heads % tp != 0 && tp % m.kv_heads != 0)
    wrong({"layout.tp", "model.kv_heads"},
          fmt::format("neither divides model.kv_heads = {} nor is a multiple of it", m.kv_heads));
  if (m.ffn % tp != 0)
    wrong({"layout.tp", "model.ffn"}, fmt::format("does not divide model.ffn = {}", m.ffn));
  if (m.shared_ffn % tp != 0)
    wrong({"layout.tp", "model.shared_ffn"},
          fmt::format("does not divide model.shared_ffn = {}", m.shared_ffn));
  // Parts of the vocabulary are rounded up, so the last ones could be empty.
  const int64_t part = (m.vocab + tp - 1) / tp;
  if (part * (tp - 1) >= m.vocab)
    wrong({"layout.tp", "model.vocab"},
          fmt::format("parts of {} rows leave the last rank none of model.vocab = {}", part, m.vocab));
}

void check_context_parallel(const RunSpec& run, Problems& out) {
  const ModelSpec& m = run.model;
  const LayoutSpec& l = run.layout;
  if (l.cp == 1 || m.heads < 1 || m.kv_heads < 1) return;
  auto wrong = [&](std::vector<std::string> keys, std::string text) {
    out.push_back({std::move(keys), std::move(text)});
  };
  const bool ulysses = l.cp_method == "ulysses", halves = !ulysses && l.cp_placement == "zigzag";
  if (run.data.seq_len % (halves ? 2 * l.cp : l.cp) != 0)
    wrong({"layout.cp", "layout.cp_placement", "data.seq_len"},
          fmt::format("ranks have {} of a sequence each, and data.seq_len = {} is not a multiple of {}",
                      halves ? "two equal chunks (zigzag)" : "an equal part", run.data.seq_len,
                      halves ? 2 * l.cp : l.cp));
  if (!ulysses) return;
  const Wide ranks = Wide(l.cp) * l.tp;
  if (m.heads % ranks != 0)
    wrong({"layout.cp_method", "layout.cp", "layout.tp", "model.heads"},
          fmt::format("gives each of cp * tp = {} * {} ranks as many heads, which does not divide "
                      "model.heads = {}; give \"ring\"",
                      l.cp, l.tp, m.heads));
  else if (m.kv_heads % ranks != 0)
    wrong({"layout.cp_method", "layout.cp", "layout.tp", "model.kv_heads"},
          fmt::format("gives each of cp * tp = {} * {} ranks as many key/value heads, which does "
                      "not divide model.kv_heads = {}; give \"ring\"",
                      l.cp, l.tp, m.kv_heads));
}

// What waits elsewhere, and where.
void check_offload(const RunSpec& run, Problems& out) {
  const LayoutSpec &l = run.layout, defaults;
  auto wrong = [&](std::vector<std::string> keys, std::string text) {
    out.push_back({std::move(keys), std::move(text)});
  };
  if (l.offloads_inputs() && l.recompute != "full")
    wrong({"layout.offload", "layout.recompute"},
          fmt::format("offloads no inputs with recompute = {}, which keeps no block's input alone; give {}, "
                      "or recompute = \"full\"",
                      shown(l.recompute), l.offload == "all" ? "\"state\"" : "\"none\" or \"state\""));
  if (l.offload == "none" && !l.offload_dir.empty())
    wrong({"layout.offload_dir", "layout.offload"},
          "has no effect with offload = \"none\"; give \"\", or what is offloaded");
  if (l.offload != "none" && l.offload_to == "host" && !l.offload_dir.empty())
    wrong({"layout.offload_dir", "layout.offload_to"},
          "has no effect with offload_to = \"host\"; give \"\", or offload_to = \"file\"");
  if (l.offload == "none" && l.offload_to != defaults.offload_to)
    wrong({"layout.offload_to", "layout.offload"},
          fmt::format("has no effect with offload = \"none\"; give {}, or what is offloaded",
                      shown(defaults.offload_to)));
  if (!l.offloads_state() && l.offload_mb != defaults.offload_mb)
    wrong({"layout.offload_mb", "layout.offload"},
          fmt::format("has no effect with offload = {}; give {}, or \"state\"", shown(l.offload),
                      defaults.offload_mb));
  if (l.offload != "none" && l.offload_to == "host" && run.train.device == "cpu")
    wrong({"layout.offload_to", "train.device"},
          "offloads nothing on \"cpu\", whose memory is the host's; give \"file\"");
}

// Names of what is computed again, and keys that say nothing without others.
void check_recompute(const RunSpec& run, Problems& out) {
  const LayoutSpec& l = run.layout;
  auto wrong = [&](std::vector<std::string> keys, std::string text) {
    out.push_back({std::move(keys), std::move(text)});
  };
  for (const auto& [key, list] : {std::pair("layout.recompute_tensors", &l.recompute_tensors),
                                  std::pair("layout.recompute_rest", &l.recompute_rest)})
    for (const std::string& name : *list) {
      if (std::find(kRecomputed.begin(), kRecomputed.end(), name) == kRecomputed.end())
        wrong({key},
              fmt::format(
                  ": {} is not a tensor that can be recomputed; those are {}{}", shown(name),
                  fmt::join(kRecomputed, ", "),
                  name.find(',') == std::string::npos ? "" : "; several are a list, as [\"n1\", \"o\"]"));
    }
  if (l.recompute == "selective" && l.recompute_tensors.empty())
    wrong({"layout.recompute_tensors", "layout.recompute"},
          "leaves nothing to compute again; name tensors, or give recompute = \"none\"");
  if (l.recompute_blocks > 0 && (l.recompute == "none" || l.recompute == "auto"))
    wrong({"layout.recompute_blocks", "layout.recompute"},
          fmt::format("has no effect with recompute = {}; give 0, or \"selective\" or \"full\"",
                      shown(l.recompute)));
  if (!l.recompute_rest.empty() && l.recompute_blocks == 0)
    wrong({"layout.recompute_rest", "layout.recompute_blocks"},
          "has no effect with recompute_blocks = 0, where there are no other blocks; give [], or a number of "
          "blocks");
  if (l.recompute_limit > 0 && l.recompute != "auto")
    wrong({"layout.recompute_limit", "layout.recompute"},
          fmt::format("has no effect with recompute = {}; give 0, or \"auto\"", shown(l.recompute)));
  if (!l.recompute_shard) return;
  if (l.recompute != "full" && l.recompute != "auto")
    wrong({"layout.recompute_shard", "layout.recompute"},
          fmt::format(
              "has no effect with recompute = {}, which keeps more than a block's input; give false, or "
              "\"full\"",
              shown(l.recompute)));
  if (l.tp == 1 || l.sequence)
    wrong({"layout.recompute_shard", "layout.tp", "layout.sequence"},
          fmt::format("has no effect with {}; give false", l.tp == 1 ? "tp = 1"
                                                                     : "sequence = true, which divides "
                                                                       "activations already"));
  else if (run.batch.micro * run.data.seq_len / l.cp % l.tp != 0)
    wrong({"layout.recompute_shard", "batch.micro", "data.seq_len", "layout.tp"},
          fmt::format(
              "divides a microbatch's {} tokens among tp = {} ranks, which does not divide them; give false",
              run.batch.micro * run.data.seq_len / l.cp, l.tp));
}

void check_stage_layers(const RunSpec& run, Problems& out) {
  const LayoutSpec& l = run.layout;
  if (l.stage_layers.empty()) return;
  const auto wrong = [&](std::vector<std::string> keys, std::string text) {
    keys.insert(keys.begin(), "layout.stage_layers");
    out.push_back({std::move(keys), std::move(text)});
  };
  if (l.cut != LayoutSpec().cut)
    return wrong({"layout.cut"}, fmt::format("states each stage's blocks; leave cut out, or give {}",
                                             shown(LayoutSpec().cut)));
  const size_t n = l.stage_layers.size();
  if (Wide(n) != Wide(l.pp) * l.chunks)
    return wrong(
        {"layout.pp", "layout.chunks"},
        fmt::format("has {} numbers for pp * chunks = {} * {} stages; give one for each", n, l.pp, l.chunks));
  double sum = 0;
  for (size_t s = 0; s < n; s++) {
    const double layers = l.stage_layers[s];
    const bool end = n > 1 && (s == 0 || s + 1 == n);  // has the embedding or the head
    if (layers != std::floor(layers) || (layers < 1 && !end))
      return wrong({}, fmt::format(": {} blocks for stage {}; give a whole number from {} on", layers, s,
                                   end ? 0 : 1));
    sum += layers;
  }
  if (sum != double(run.model.layers))
    wrong({"model.layers"},
          fmt::format(": the numbers add up to {}, and the model has {} blocks", sum, run.model.layers));
}

void check_layout(const RunSpec& run, Problems& out) {
  const LayoutSpec& l = run.layout;
  auto wrong = [&](std::vector<std::string> keys, std::string text) {
    out.push_back({std::move(keys), std::move(text)});
  };
  Wide world = Wide(l.pp) * l.dp * l.cp * l.tp;
  if (world > 1 << 20)
    wrong({"layout.dp", "layout.tp", "layout.pp", "layout.cp"},
          fmt::format(": world = pp * dp * cp * tp = {} * {} * {} * {} is more than 1048576 ranks", l.pp,
                      l.dp, l.cp, l.tp));
  else if (l.dp * l.cp * l.tp % l.ep != 0)
    wrong({"layout.ep", "layout.dp", "layout.cp", "layout.tp"},
          fmt::format("does not divide dp * cp * tp = {}", l.dp * l.cp * l.tp));

  std::istringstream words(l.order);
  std::vector<std::string> axes;
  for (std::string w; words >> w;) axes.push_back(w);
  std::sort(axes.begin(), axes.end());
  if (axes != std::vector<std::string>{"cp", "dp", "pp", "tp"})
    wrong({"layout.order"}, "must name pp, dp, cp and tp once each, such as \"pp dp cp tp\"");
  check_tensor_parallel(run, out);
  check_context_parallel(run, out);
  check_stage_layers(run, out);
  // Cut evenly the embedding and the head may be stages of their own.
  if (const int64_t ends = (l.cut == "even" || !l.stage_layers.empty()) && l.pp > 1 ? 2 : 0;
      l.pp * l.chunks > run.model.layers + ends)
    wrong({"layout.pp", "layout.chunks", "model.layers"},
          fmt::format(": pp * chunks = {} * {} stages are more than model.layers{} = {}", l.pp, l.chunks,
                      ends > 0 ? " + 2" : "", run.model.layers + ends));
  if (l.schedule == "file" && l.schedule_file.empty())
    wrong({"layout.schedule", "layout.schedule_file"},
          "wants layout.schedule_file, which is empty; give the file's path");
  if (l.schedule != "file" && !l.schedule_file.empty())
    wrong({"layout.schedule_file", "layout.schedule"},
          fmt::format("has no effect with layout.schedule = {}; give \"file\" there, or leave it out",
                      shown(l.schedule)));
  if (l.schedule != "auto" && l.in_flight > 0)
    wrong({"layout.in_flight", "layout.schedule"},
          fmt::format("has no effect with layout.schedule = {}; give \"auto\" there, or leave it out",
                      shown(l.schedule)));
  if (l.chunks > 1 && l.pp == 1)
    wrong({"layout.chunks", "layout.pp"}, "has no effect with pp = 1; give 1, or pp above 1");
  if (l.schedule == "auto" && l.chunks != 1)
    wrong({"layout.chunks", "layout.schedule"},
          ": layout.schedule = \"auto\" takes chunks = 1 (one stage a rank)");
  if (l.shard_group > 0 && l.cp == 1 && l.dp % l.shard_group != 0)
    wrong({"layout.shard_group", "layout.dp"}, fmt::format("does not divide dp = {}", l.dp));
  if (l.shard_group > 0 && l.cp > 1 && Wide(l.dp) * l.cp % l.shard_group != 0)
    wrong({"layout.shard_group", "layout.dp", "layout.cp"},
          fmt::format("does not divide dp * cp = {} * {}", l.dp, l.cp));

  Wide per_round = Wide(l.dp) * run.batch.micro;
  if (run.batch.global % per_round != 0)
    wrong({"batch.global", "batch.micro", "layout.dp"},
          fmt::format("is not a multiple of dp * micro = {} * {} = {}", l.dp, run.batch.micro,
                      int64_t(per_round)));
}

void check_training(const RunSpec& run, Problems& out) {
  const OptimizerSpec& o = run.optimizer;
  const bool automatic = o.lr == kAutomatic;  // resolve() checks min_lr
  if (!automatic && o.min_lr > o.lr)
    out.push_back(
        {{"optimizer.min_lr", "optimizer.lr"}, fmt::format("is above lr = {}; give at most that", o.lr)});
  if (o.adamw_lr > 0 && o.lr == 0)
    out.push_back({{"optimizer.adamw_lr", "optimizer.lr"},
                   "has no effect with lr = 0, which both follow; give lr above 0"});
  if (o.embed_lr > 0 && o.lr == 0)
    out.push_back({{"optimizer.embed_lr", "optimizer.lr"},
                   "has no effect with lr = 0, which all rates follow; give lr above 0"});
  if (o.post_validation != "off" && run.layout.pp == 1)
    out.push_back({{"optimizer.post_validation", "layout.pp"},
                   "has no effect with pp = 1, where no stage waits for another's norm; give "
                   "\"off\", or pp above 1"});
  const PrecisionSpec& p = run.precision;
  if ((p.compute == "f32" || p.compute == "f16") && p.grads == "bf16")
    out.push_back(
        {{"precision.grads", "precision.compute"},
         fmt::format("gradients need compute = \"bf16\"; with {} give \"f32\" or \"auto\"", p.compute)});
  if (p.fp8 != "none" && p.compute == "f16")
    out.push_back({{"precision.fp8", "precision.compute"},
                   "needs compute = \"bf16\" or \"f32\"; with f16 give \"none\""});
  if (p.fp8 != "none" && p.fp8_layers.empty())
    out.push_back({{"precision.fp8_layers", "precision.fp8"},
                   "chooses no layer; give patterns such as \"*\", or precision.fp8 = \"none\""});
  if (!run.lora.active() && !run.lora.adapter.empty())
    out.push_back({{"lora.adapter", "lora.rank"},
                   "has no effect with lora.rank = 0; give the adapter's rank, or no adapter"});
  if (run.lora.active() && run.lora.targets.empty())
    out.push_back(
        {{"lora.targets", "lora.rank"}, "chooses no matrix; give patterns such as \"*\", or lora.rank = 0"});
  if (p.initial_scale < p.min_scale)
    out.push_back({{"precision.initial_scale", "precision.min_scale"},
                   fmt::format("is below min_scale = {}; give at least that", p.min_scale)});
  if (run.train.noise_scale > 0 && smallest_batch(run.batch) <= run.batch.micro)
    out.push_back({{"train.noise_scale", "batch.global", "batch.micro"},
                   fmt::format("needs a batch of several parts to compare, and {} = {} is one "
                               "microbatch of one replica; give 0, or a smaller batch.micro",
                               run.batch.ramp.empty() ? "batch.global" : "the first of batch.ramp",
                               smallest_batch(run.batch))});
  check_recorded_steps(run, out);
  if (run.train.dir.empty())
    out.push_back({{"train.dir"}, "is not a folder; give one, such as \"runs/demo\""});
  if (run.data.train.empty())
    out.push_back({{"data.train"}, "is not a token shard; give a path, such as \"data/train\""});
  const Numbers& w = run.data.weights;
  if (run.data.train.size() > 4096)
    out.push_back(
        {{"data.train"}, fmt::format(": {} shards are too many; give at most 4096", run.data.train.size())});
  if (!w.empty() && w.size() != run.data.train.size())
    out.push_back({{"data.weights", "data.train"},
                   fmt::format(": {} weights for the {} shards of data.train; give one each, or none",
                               w.size(), run.data.train.size())});
  else if (!w.empty() && std::all_of(w.begin(), w.end(), [](double d) { return d == 0; }))
    out.push_back({{"data.weights"}, ": every weight is 0; give one above"});
}

}  // namespace

std::vector<Problem> problems_of(const RunSpec& run) {
  Problems out;
  check_model(run.model, out);
  check_latent(run.model, out);
  check_experts(run.model, out);
  check_routers(run, out);
  check_sizes(run, out);
  check_layout(run, out);
  check_ramp(run, out);
  check_recompute(run, out);
  check_offload(run, out);
  check_training(run, out);
  return out;
}

}  // namespace trireme
