#include "plan/framework.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"
#include "base/json.h"

namespace trireme {
namespace {

// A flag that is printed if `when` (a requirement; "" = always) allows the layout. {name} in the flag stands
// for a number of the layout (number_of).
struct FlagRow {
  std::string_view flag;
  std::string_view when;
};

// Megatron-LM core_v0.14, megatron/training/arguments.py: github.com/NVIDIA/Megatron-LM.
constexpr auto kMegatron = std::to_array<FlagRow>({
    {"--tensor-model-parallel-size {tp}", ""},
    {"--sequence-parallel", "tp>1"},
    {"--pipeline-model-parallel-size {pp}", ""},
    {"--num-virtual-stages-per-pipeline-rank {chunks}", "schedule=interleaved"},
    {"--context-parallel-size {cp}", ""},
    {"--cp-comm-type p2p", "cp>1"},
    {"--expert-model-parallel-size {ep}", "ep>1"},
    {"--use-tp-pp-dp-mapping", "order=dp pp cp tp"},
    {"--micro-batch-size {micro}", ""},
    {"--global-batch-size {global}", ""},
    {"--seq-length {seq}", ""},
    {"--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", "zero=1"},
    {"--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "recompute=full"},
    {"--recompute-granularity selective --recompute-modules layernorm", "recompute=selective"},
});

// NeMo 2.0, nemo.lightning.MegatronStrategy and llm recipes: docs.nvidia.com/nemo-framework/user-guide.
constexpr auto kNemo = std::to_array<FlagRow>({
    {"trainer.num_nodes={nodes}", ""},
    {"trainer.devices={per_node}", ""},
    {"trainer.strategy.tensor_model_parallel_size={tp}", ""},
    {"trainer.strategy.sequence_parallel=True", "tp>1"},
    {"trainer.strategy.pipeline_model_parallel_size={pp}", ""},
    {"trainer.strategy.virtual_pipeline_model_parallel_size={chunks}", "schedule=interleaved"},
    {"trainer.strategy.context_parallel_size={cp}", ""},
    {"trainer.strategy.expert_model_parallel_size={ep}", "ep>1"},
    {"trainer.strategy.use_tp_pp_dp_mapping=True", "order=dp pp cp tp"},
    {"trainer.strategy.ddp.use_distributed_optimizer=True", "zero=1"},
    {"data.micro_batch_size={micro}", ""},
    {"data.global_batch_size={global}", ""},
    {"data.seq_length={seq}", ""},
    {"model.config.recompute_granularity=full", "recompute=full"},
    {"model.config.recompute_method=uniform model.config.recompute_num_layers=1", "recompute=full"},
    {"model.config.recompute_granularity=selective", "recompute=selective"},
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
});

// DeepSpeed 0.17, docs/_pages/config-json.md and docs/_tutorials/pipeline.md: deepspeed.ai. A dotted name is
// a key of ds_config.json.
constexpr auto kDeepspeed = std::to_array<FlagRow>({
    {"--num_nodes {nodes}", ""},
    {"--num_gpus {per_node}", ""},
    {"train_batch_size={global}", ""},
    {"train_micro_batch_size_per_gpu={micro}", ""},
    {"gradient_accumulation_steps={microbatches}", ""},
    {"bf16.enabled=true", ""},
    {"zero_optimization.stage={zero}", ""},
    {"zero_optimization.offload_optimizer.device=\"cpu\"", "offload=state"},
    {"tensor_parallel.autotp_size={tp}", "tp>1"},
    {"pipeline.stages={pp}", "pp>1"},
    {"activation_checkpointing.partition_activations=false", "recompute=full"},
});

struct FrameworkRow {
  std::string_view name, software, source;
  std::span<const FlagRow> flags;
  std::vector<std::string_view> supports;  // requirements
  std::string_view before;                 // the flags: command
};

const std::vector<FrameworkRow>& rows() {
  static const std::vector<FrameworkRow> all = {
      {"megatron",
       "megatron-0.14",
       "github.com/NVIDIA/Megatron-LM: megatron/training/arguments.py",
       kMegatron,
       {"schedule=1f1b,interleaved", "zero=0,1", "shard_group=0", "order=pp dp cp tp,dp pp cp tp",
        "offload=none"},
       "torchrun ... pretrain_gpt.py"},
      {"torchtitan",
       "torchtitan",
       "github.com/pytorch/torchtitan: torchtitan/config/job_config.py",
       kTorchtitan,
       {"schedule=1f1b,gpipe,interleaved,zb-v", "zero=0,3", "cp=1 if zero=0", "shard_group=0 if cp>1",
        "chunks<=2", "order=pp dp cp tp", "offload=none"},
       "torchrun ... -m torchtitan.train"},
      {"nemo",
       "nemo",
       "docs.nvidia.com/nemo-framework: nemo.lightning.MegatronStrategy",
       kNemo,
       {"schedule=1f1b,interleaved", "zero=0,1", "shard_group=0", "order=pp dp cp tp,dp pp cp tp",
        "offload=none"},
       "nemo llm pretrain --factory ..."},
      {"deepspeed",
       "",
       "deepspeed.ai: docs/config-json, tutorials/pipeline",
       kDeepspeed,
       {"schedule=1f1b", "cp=1", "ep=1", "shard_group=0", "zero<=1 if pp>1", "zero<=2 if tp>1",
        "recompute=none,full", "order=pp dp cp tp"},
       "deepspeed"},
  };
  return all;
}

int64_t number_of(std::string_view name, const SearchRequest& q, const SearchLayout& l) {
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
    if (key == name) return n;
  require(false, "a number of a launch flag");
  return 0;
}

std::string filled(std::string_view flag, const SearchRequest& q, const SearchLayout& l) {
  const size_t open = flag.find('{');
  if (open == flag.npos) return std::string(flag);
  const size_t close = flag.find('}', open);
  return fmt::format("{}{}{}", flag.substr(0, open), number_of(flag.substr(open + 1, close - open - 1), q, l),
                     flag.substr(close + 1));
}

const FrameworkRow& row_named(std::string_view name) {
  for (const FrameworkRow& row : rows())
    if (row.name == name) return row;
  require(false, "a framework of --as");
  return rows()[0];
}

std::vector<std::string> flags_of(const FrameworkRow& row, const SearchRequest& q, const SearchLayout& l) {
  std::vector<std::string> flags;
  for (const FlagRow& f : row.flags)
    if (f.when.empty() || parse_requirement(f.when).allows(l)) flags.push_back(filled(f.flag, q, l));
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

std::string launch_text(const Framework& f, const SearchRequest& q, const SearchLayout& l) {
  constexpr size_t kColumns = 100;
  const FrameworkRow& row = row_named(f.name);
  std::vector<std::string> flags, settings;
  for (const std::string& flag : flags_of(row, q, l))
    (flag.starts_with("-") || row.name != "deepspeed" ? flags : settings).push_back(flag);
  std::string s = fmt::format("launch flags of {} ({}):\n", f.name, f.source);
  std::string line = "  " + std::string(row.before);
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
  return s;
}

}  // namespace trireme
