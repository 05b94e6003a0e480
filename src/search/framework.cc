#include "search/framework.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "model/stages.h"

namespace trireme {
namespace {

// Properties of the run, which no requirement names. uneven: stages do not have equally many layers.
enum class OnlyIf { always, experts, fp8, bf16, f16, uneven };

// A flag that is printed if `when` (a requirement; "" = always) allows the layout and `only_if` the run.
// {name} in the flag stands for a value of the layout (value_of_flag).
struct FlagRow {
  std::string_view flag;
  std::string_view when;
  OnlyIf only_if = OnlyIf::always;
};

// Megatron-LM core_v0.14, megatron/training/arguments.py: github.com/NVIDIA/Megatron-LM. This program never
// divides an expert by tp.
constexpr auto kMegatron = std::to_array<FlagRow>({
    {"--tensor-model-parallel-size {tp}", ""},
    {"--sequence-parallel", "tp>1"},
    {"--pipeline-model-parallel-size {pp}", ""},
    {"--num-virtual-stages-per-pipeline-rank {chunks}", "schedule=interleaved"},
    {"--pipeline-model-parallel-layout {stages}", "pp>1", OnlyIf::uneven},
    {"--context-parallel-size {cp}", ""},
    {"--cp-comm-type p2p", "cp>1"},
    {"--expert-model-parallel-size {ep}", "ep>1"},
    {"--expert-tensor-parallel-size 1", "tp>1", OnlyIf::experts},
    {"--use-tp-pp-dp-mapping", "order=dp pp cp tp"},
    {"--micro-batch-size {micro}", ""},
    {"--global-batch-size {global}", ""},
    {"--seq-length {seq}", ""},
    {"--bf16", "", OnlyIf::bf16},
    {"--fp16", "", OnlyIf::f16},
    {"--fp8-format hybrid --fp8-recipe {recipe}", "", OnlyIf::fp8},
    {"--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", "zero=1"},
    {"--overlap-grad-reduce", "dp>1 if zero=0"},
    {"--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "recompute=full"},
    {"--recompute-granularity selective --recompute-modules layernorm", "recompute=selective"},
});

// NeMo 2.4, nemo.lightning.MegatronStrategy and llm recipes: docs.nvidia.com/nemo-framework/user-guide.
constexpr auto kNemo = std::to_array<FlagRow>({
    {"trainer.num_nodes={nodes}", ""},
    {"trainer.devices={per_node}", ""},
    {"trainer.strategy.tensor_model_parallel_size={tp}", ""},
    {"trainer.strategy.sequence_parallel=True", "tp>1"},
    {"trainer.strategy.pipeline_model_parallel_size={pp}", ""},
    {"trainer.strategy.virtual_pipeline_model_parallel_size={chunks}", "schedule=interleaved"},
    {"trainer.strategy.context_parallel_size={cp}", ""},
    {"trainer.strategy.expert_model_parallel_size={ep}", "ep>1"},
    {"trainer.strategy.expert_tensor_parallel_size=1", "tp>1", OnlyIf::experts},
    {"trainer.strategy.use_tp_pp_dp_mapping=True", "order=dp pp cp tp"},
    {"trainer.strategy.ddp.use_distributed_optimizer=True", "zero=1"},
    {"data.micro_batch_size={micro}", ""},
    {"data.global_batch_size={global}", ""},
    {"data.seq_length={seq}", ""},
    {"model.config.recompute_granularity=full", "recompute=full"},
    {"model.config.recompute_method=uniform model.config.recompute_num_layers=1", "recompute=full"},
    {"model.config.recompute_granularity=selective", "recompute=selective"},
    {"model.config.recompute_modules='[\"layernorm\"]'", "recompute=selective"},
    {"trainer.plugins.fp8=hybrid trainer.plugins.fp8_recipe={recipe}", "", OnlyIf::fp8},
});

// torchtitan 0.2, torchtitan/config/job_config.py: github.com/pytorch/torchtitan.
constexpr auto kTorchtitan = std::to_array<FlagRow>({
    {"--parallelism.data_parallel_replicate_degree {dp}", "zero=0"},
    {"--parallelism.data_parallel_shard_degree 1", "zero=0"},
    {"--parallelism.data_parallel_replicate_degree {replicas}", "zero=3"},
    {"--parallelism.data_parallel_shard_degree {shards}", "zero=3"},
    {"--parallelism.fsdp_reshard_after_forward always", "zero=3"},
    {"--parallelism.tensor_parallel_degree {tp}", ""},
    {"--parallelism.context_parallel_degree {cp}", ""},
    {"--parallelism.expert_parallel_degree {ep}", "ep>1"},
    {"--parallelism.pipeline_parallel_degree {pp}", ""},
    {"--parallelism.pipeline_parallel_first_stage_less_layers 0", "pp>1"},
    {"--parallelism.pipeline_parallel_last_stage_less_layers 0", "pp>1"},
    {"--parallelism.pipeline_parallel_schedule 1F1B", "schedule=1f1b if pp>1"},
    {"--parallelism.pipeline_parallel_schedule GPipe", "schedule=gpipe"},
    {"--parallelism.pipeline_parallel_schedule Interleaved1F1B", "schedule=interleaved"},
    {"--parallelism.pipeline_parallel_schedule ZBVZeroBubble", "schedule=zb-v"},
    {"--parallelism.pipeline_parallel_microbatch_size {micro}", "pp>1"},
    {"--training.local_batch_size {local}", "pp>1"},
    {"--training.local_batch_size {micro}", "pp=1"},
    {"--training.global_batch_size {global}", ""},
    {"--training.seq_len {seq}", ""},
    {"--activation_checkpoint.mode none", "recompute=none"},
    {"--activation_checkpoint.mode full", "recompute=full"},
    {"--activation_checkpoint.mode selective", "recompute=selective"},
    {"--activation_checkpoint.selective_ac_option op", "recompute=selective"},
    {"--model.converters quantize.linear.float8", "", OnlyIf::fp8},
    {"--quantize.linear.float8.recipe_name {recipe}", "", OnlyIf::fp8},
});

// DeepSpeed 0.17, docs/_pages/config-json.md and docs/_tutorials/pipeline.md: deepspeed.ai. KEY=VALUE belongs
// to ds_config.json. Calls of the model's code begin with "code ": no key sets the number of stages.
constexpr auto kDeepspeed = std::to_array<FlagRow>({
    {"--num_nodes {nodes}", ""},
    {"--num_gpus {per_node}", ""},
    {"train_batch_size={global}", ""},
    {"train_micro_batch_size_per_gpu={micro}", ""},
    {"gradient_accumulation_steps={microbatches}", ""},
    {"bf16.enabled=true", "", OnlyIf::bf16},
    {"fp16.enabled=true", "", OnlyIf::f16},
    {"zero_optimization.stage={zero}", ""},
    {"zero_optimization.offload_optimizer.device=\"cpu\"", "offload=state"},
    {"tensor_parallel.autotp_size={tp}", "tp>1"},
    {"code PipelineModule(num_stages={pp}, partition_method=\"type:transformer\")", "pp>1"},
    {"pipeline.activation_checkpoint_interval=1", "recompute=full if pp>1"},
    {"code deepspeed.checkpointing.checkpoint() around each block", "recompute=full"},
});

struct FrameworkRow {
  std::string_view name, software, source;
  std::span<const FlagRow> flags;
  std::vector<std::string_view> supports;                              // requirements
  bool uneven;                                                         // flags give each stage its layers
  std::string_view before;                                             // the flags: command
  std::vector<std::pair<std::string_view, std::string_view>> recipes;  // precision.fp8 and its name there
};

const std::vector<FrameworkRow>& rows() {
  static const std::vector<FrameworkRow> all = {
      {"megatron",
       "megatron-0.14",
       "github.com/NVIDIA/Megatron-LM: megatron/training/arguments.py",
       kMegatron,
       {"schedule=1f1b,interleaved", "zero=0,1", "shard_group=0", "order=pp dp cp tp,dp pp cp tp",
        "offload=none"},
       true,
       "torchrun --nnodes {nodes} --nproc_per_node {per_node} pretrain_gpt.py",
       {{"current", "tensorwise"}, {"delayed", "delayed"}, {"block", "blockwise"}}},
      {"torchtitan",
       "torchtitan",
       "github.com/pytorch/torchtitan: torchtitan/config/job_config.py",
       kTorchtitan,
       {"schedule=1f1b,gpipe,interleaved,zb-v", "zero=0,3", "cp=1 if zero=0", "shard_group=0 if cp>1",
        "chunks<=2", "tp=1 if ep>1", "cp=1 if ep>1", "order=pp dp cp tp", "offload=none"},
       false,
       "torchrun --nnodes {nodes} --nproc_per_node {per_node} -m torchtitan.train",
       {{"current", "tensorwise"}}},
      {"nemo",
       "nemo",
       "docs.nvidia.com/nemo-framework: nemo.lightning.MegatronStrategy",
       kNemo,
       {"schedule=1f1b,interleaved", "zero=0,1", "shard_group=0", "order=pp dp cp tp,dp pp cp tp",
        "offload=none"},
       false,
       "nemo llm pretrain --factory MODEL",
       {{"current", "tensorwise"}, {"delayed", "delayed"}, {"block", "blockwise"}}},
      {"deepspeed",
       "",
       "deepspeed.ai: docs/config-json, tutorials/pipeline",
       kDeepspeed,
       {"schedule=1f1b", "cp=1", "ep=1", "shard_group=0", "zero<=1 if pp>1", "tp=1 if pp>1",
        "zero<=2 if tp>1", "recompute=none,full", "order=pp dp cp tp"},
       false,
       "deepspeed",
       {}},
  };
  return all;
}

const FrameworkRow& row_named(std::string_view name) {
  for (const FrameworkRow& row : rows())
    if (row.name == name) return row;
  require(false, "a framework of --as");
  return rows()[0];
}

// The recipe of 8-bit products of the request's run; "none" if it has none.
std::string_view fp8_of(const SearchRequest& q) {
  if (q.numbers == NumberType::half) return "none";
  return q.run && q.run->precision.fp8 != "none" ? std::string_view(q.run->precision.fp8) : "current";
}
// The framework's name of it; "" = it has no such recipe.
std::string_view recipe_of(const FrameworkRow& row, const SearchRequest& q) {
  for (const auto& [own, there] : row.recipes)
    if (own == fp8_of(q)) return there;
  return "";
}

// Megatron's text of stages that do not have equally many layers: E, t and L are embedding, block and loss.
std::string stages_text(const SearchRequest& q, const SearchLayout& l) {
  const std::vector<StageRange> stages = split_evenly(q.model, int(l.pp * l.chunks));
  std::string s = "\"E";
  for (size_t i = 0; i < stages.size();) {
    const int64_t layers = stages[i].last - stages[i].first;
    size_t alike = 1;  // except the first and the last, which have E and L
    while (i > 0 && i + alike + 1 < stages.size() &&
           stages[i + alike].last - stages[i + alike].first == layers)
      alike++;
    const bool last = i + 1 == stages.size();
    const std::string one = layers > 0 ? fmt::format("t*{}", layers) : "";
    s += last ? one : alike > 1 ? fmt::format("({}|)*{},", one, alike) : one + "|";
    i += alike;
  }
  return s + "L\"";
}

std::string value_of_flag(std::string_view name, const FrameworkRow& row, const SearchRequest& q,
                          const SearchLayout& l) {
  if (name == "recipe") return std::string(recipe_of(row, q));
  if (name == "stages") return stages_text(q, l);
  const int64_t per_node = std::min(l.gpus, std::max<int64_t>(1, int64_t(q.figures.near)));
  // Shards of torchtitan's mesh do not count cp's ranks, which shard too.
  const int64_t shards = l.shards > 0 ? std::max<int64_t>(1, l.shards / l.cp) : l.dp;
  for (const auto& [key, n] : {std::pair<std::string_view, int64_t>{"tp", l.tp},
                               {"pp", l.pp},
                               {"dp", l.dp},
                               {"cp", l.cp},
                               {"ep", l.ep},
                               {"zero", l.zero},
                               {"chunks", l.chunks},
                               {"micro", l.micro},
                               {"microbatches", l.microbatches()},
                               {"global", l.global},
                               {"local", l.global / l.dp},
                               {"seq", q.seq},
                               {"per_node", per_node},
                               {"nodes", (l.gpus + per_node - 1) / per_node},
                               {"shards", shards},
                               {"replicas", l.dp / shards}})
    if (key == name) return std::to_string(n);
  require(false, "a value of a launch flag");
  return "";
}

std::string filled(std::string_view flag, const FrameworkRow& row, const SearchRequest& q,
                   const SearchLayout& l) {
  const size_t open = flag.find('{');
  if (open == flag.npos) return std::string(flag);
  const size_t close = flag.find('}', open);
  return fmt::format("{}{}{}", flag.substr(0, open),
                     value_of_flag(flag.substr(open + 1, close - open - 1), row, q, l),
                     filled(flag.substr(close + 1), row, q, l));
}

// Whether a row's flag belongs to this layout. "A if B" of a flag: both hold.
bool of_f16(const SearchRequest& q) {
  return q.run && q.run->precision.compute == "f16";
}

bool is_printed(const FlagRow& f, const SearchRequest& q, const SearchLayout& l) {
  if (f.only_if == OnlyIf::experts && !q.model.moe()) return false;
  if (f.only_if == OnlyIf::fp8 && fp8_of(q) == "none") return false;
  if (f.only_if == OnlyIf::bf16 && of_f16(q)) return false;
  if (f.only_if == OnlyIf::f16 && !of_f16(q)) return false;
  if (f.only_if == OnlyIf::uneven && q.model.layers % (l.pp * l.chunks) == 0) return false;
  if (f.when.empty()) return true;
  const Requirement r = parse_requirement(f.when);
  return r.allows(l) && (r.only_if.empty() || r.only_if[0].allows(l));
}

std::vector<std::string> flags_of(const FrameworkRow& row, const SearchRequest& q, const SearchLayout& l) {
  std::vector<std::string> flags;
  for (const FlagRow& f : row.flags)
    if (is_printed(f, q, l)) flags.push_back(filled(f.flag, row, q, l));
  return flags;
}

// ds_config.json of "a.b=value" settings.
std::string config_json(const std::vector<std::string>& settings) {
  nlohmann::ordered_json j;
  for (const std::string& s : settings) {
    const size_t equals = s.find('=');
    std::string path = "/" + s.substr(0, equals);
    std::replace(path.begin(), path.end(), '.', '/');
    j[nlohmann::ordered_json::json_pointer(path)] = nlohmann::ordered_json::parse(s.substr(equals + 1));
  }
  return j.dump();
}

}  // namespace

std::vector<std::string> framework_names() {
  std::vector<std::string> all;
  for (const FrameworkRow& row : rows()) all.emplace_back(row.name);
  return all;
}

const Framework& framework_named(std::string_view name) {
  static const std::vector<Framework> all = [] {
    std::vector<Framework> made;
    for (const FrameworkRow& row : rows()) {
      Framework f{.name = row.name, .software = row.software, .source = row.source, .require = {}};
      for (const std::string_view text : row.supports)
        f.require.push_back(parse_requirement(text, fmt::format("--as {}", row.name)));
      made.push_back(std::move(f));
    }
    return made;
  }();
  for (const Framework& f : all)
    if (f.name == name) return f;
  require(false, "a framework of --as");
  return all[0];
}

void require_stages(const Framework& f, SearchRequest& q) {
  q.run->layout.cut = "even";
  if (row_named(f.name).uneven) return;
  std::string divisors;
  for (int64_t pp = 1; pp <= q.model.layers; pp++)
    if (q.model.layers % pp == 0) divisors += fmt::format("{}{}", divisors.empty() ? "pp=" : ",", pp);
  q.require.insert(q.require.begin(), parse_requirement(divisors, fmt::format("--as {}", f.name)));
}

void refuse_types(const Framework& f, const SearchRequest& q) {
  const FrameworkRow& row = row_named(f.name);
  const auto is_f16 = [](const FlagRow& flag) { return flag.only_if == OnlyIf::f16; };
  if (of_f16(q) && std::none_of(row.flags.begin(), row.flags.end(), is_f16))
    bad_request("--as {}: the run is in f16, and no flag of it is known there; --as megatron has one",
                row.name);
  if (fp8_of(q) == "none" || !recipe_of(row, q).empty()) return;
  std::string known;
  for (const auto& [own, there] : row.recipes) known += fmt::format("precision.fp8={}, ", own);
  bad_request("--as {}: precision.fp8 = \"{}\": it has no such recipe; give {}precision=bf16", row.name,
              fp8_of(q), known);
}

std::string launch_text(const Framework& f, const SearchRequest& q, const SearchLayout& l) {
  constexpr size_t kColumns = 136;  // as wide as answers: flags and answer fit a screen
  constexpr std::string_view kCode = "code ";
  const FrameworkRow& row = row_named(f.name);
  std::vector<std::string> flags, settings;
  std::string code;
  for (const std::string& flag : flags_of(row, q, l))
    if (flag.starts_with(kCode))
      code += fmt::format("{}{}", code.empty() ? "" : "; ", flag.substr(kCode.size()));
    else
      (flag.starts_with("-") || row.name != "deepspeed" ? flags : settings).push_back(flag);
  std::string s = fmt::format("launch flags of {} ({}):\n", f.name, f.source);
  std::string line = "  " + filled(row.before, row, q, l);
  for (const std::string& flag : flags) {
    if (line.size() + 1 + flag.size() > kColumns - 2) {
      s += line + " \\\n";
      line = "   ";
    }
    line += " " + flag;
  }
  if (!settings.empty()) line += " train.py --deepspeed_config ds_config.json";
  s += line + "\n";
  if (!settings.empty()) s += "  ds_config.json: " + config_json(settings) + "\n";
  if (!code.empty()) s += "  in train.py: " + code + "\n";
  return s;
}

}  // namespace trireme
