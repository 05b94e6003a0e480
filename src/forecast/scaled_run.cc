#include "forecast/scaled_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "base/error.h"
#include "cost/memory.h"
#include "cost/stage_time.h"
#include "cost/step_memory.h"
#include "forecast/untrained_router.h"
#include "forecast/work_prices.h"
#include "model/stages.h"
#include "spec/recompute.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

Nearest nearest_of(const std::string& order) {
  if (order == "pp dp cp tp") return Nearest::tensor;
  if (order == "dp pp cp tp") return Nearest::stages;
  if (order == "pp tp cp dp") return Nearest::replicas;
  bad_request(
      "layout.order: \"{}\" is not priced in closed form; right are \"pp dp cp tp\", \"dp pp cp tp\" and "
      "\"pp tp "
      "cp dp\"",
      order);
}

void refuse_unpriced(const ScaledRun& s) {
  const RunSpec& run = s.run;
  const LayoutSpec& l = run.layout;
  const auto no = [](std::string_view key, const auto& value, std::string_view right) {
    bad_request("{} = {}: a step priced in closed form has none of that; right is {}", key, value, right);
  };
  if (run.precision.compute == "f32") no("precision.compute", "\"f32\"", "\"bf16\", \"f16\" or \"fp8\"");
  if (run.optimizer.name != "adamw") no("optimizer.name", "\"" + run.optimizer.name + "\"", "\"adamw\"");
  if (run.lora.active()) no("lora.rank", run.lora.rank, "0");
  if (l.shard_group != 0 && !s.software.searched_groups) no("layout.shard_group", l.shard_group, "0");
  if (l.recompute == "auto") no("layout.recompute", "\"auto\"", "\"none\", \"selective\" or \"full\"");
  // StepCase::renorm is of norms' and activations' outputs.
  if (l.recompute == "selective" &&
      recompute_of(l.recompute_tensors) != recompute_of(Texts::of({"n1", "n2", "a"})))
    no("layout.recompute_tensors", fmt::format("[\"{}\"]", fmt::join(l.recompute_tensors, "\", \"")),
       "[\"n1\", \"n2\", \"a\"]");
  if (!l.stage_layers.empty() && !s.software.ordered())
    no("layout.stage_layers", fmt::format("[{}]", fmt::join(l.stage_layers, ", ")), "[]");
  if (l.recompute_blocks != 0) no("layout.recompute_blocks", l.recompute_blocks, "0");
  if (l.recompute_shard) no("layout.recompute_shard", true, "false");
  if (l.cp > 1 && l.cp_method != "ring") no("layout.cp_method", "\"" + l.cp_method + "\"", "\"ring\"");
  if (l.offloads_inputs()) no("layout.offload", "\"" + l.offload + "\"", "\"none\" or \"state\"");
  if (l.offloads_state() && s.offload <= 0)
    bad_request(
        "layout.offload = \"state\": the bandwidth to where it waits is not known; expected a cluster file "
        "with {}",
        l.offload_to == "host" ? "host_bandwidth" : "disk_bandwidth");
  if (l.tp_chunks != 1) no("layout.tp_chunks", l.tp_chunks, "1");
  if (l.schedule == "dualpipe")
    no("layout.schedule", "\"dualpipe\"", "a schedule with each stage on one rank, such as \"dualpipe-v\"");
  if (has_own_schedule(l)) no("layout.schedule", "\"" + l.schedule + "\"", "a schedule by name");
}

// Prices by a kind of devices.
class DevicePrices {
 public:
  DevicePrices(const StepCase& c, const DeviceFigures& d, const FitValues& f)
      : c_(c), d_(d), f_(f), prices_(c_, d_, f_) {}
  DevicePrices(const DevicePrices&) = delete;

  const WorkPrices& prices() const { return prices_; }
  // By WorkLayer.
  std::vector<LayerWork> layers() const {
    std::vector<LayerWork> all = {layer(false), LayerWork{}, prices_.table(true), head()};
    if (c_.model.moe()) all[kExpertLayer] = layer(true);
    return all;
  }

 private:
  LayerWork layer(bool experts) const {
    LayerWork w = prices_.passes(experts);
    prices_.set_states(w, layer_held(c_, experts), 1);
    w.kept = int64_t(kept_bytes(c_, f_, experts)), w.waiting = int64_t(waiting_bytes(c_, f_, experts));
    w.scratch = int64_t(backward_bytes(c_, experts));
    return w;
  }
  LayerWork head() const {
    LayerWork w = prices_.table(false);
    w.kept = int64_t(logit_bytes(c_, f_)), w.scratch = int64_t(loss_bytes(c_, f_));
    return w;
  }

  StepCase c_;
  DeviceFigures d_;
  FitValues f_;
  WorkPrices prices_;
};

class WorkWriter {
 public:
  explicit WorkWriter(const ScaledRun& s) : run_(s.run), c_(step_case_of(s)) {
    if (!s.kinds) {
      f_ = s.software.ordered() ? ordered_constants(constants_of(s.by)) : constants_of(s.by);
      by_.push_back(std::make_unique<DevicePrices>(c_, s.figures, f_));
      of_rank_.resize(size_t(run_.layout.pp));
      return;
    }
    std::map<int64_t, size_t> place;  // in by_
    for (const int64_t number : *s.kinds->of_ranks(run_.layout)) {
      const auto [it, fresh] = place.try_emplace(number, by_.size());
      of_rank_.push_back(it->second);
      if (!fresh) continue;
      const DeviceKinds::Kind& kind = s.kinds->at(number);
      f_ = kind.fits;
      by_.push_back(std::make_unique<DevicePrices>(on_kind(c_, kind), kind.figures, kind.fits));
    }
  }

  WorldWork run(const Schedule& schedule) {
    WorldWork w;
    by_[0]->prices().set_policy(w, run_.layout);
    for (const auto& by : by_)
      for (const LayerWork& l : by->layers()) w.kinds.push_back(l);
    stages(w, schedule);
    for (const auto& by : by_) w.message = std::max(w.message, by->prices().message());
    w.message_bytes = int64_t(double(c_.micro * c_.seq / c_.cp) * double(c_.model.hidden) * 2 /
                              double(c_.sequence ? c_.tp : 1));
    w.base = int64_t(f_[size_t(Fit::base)]);
    return w;
  }

 private:
  void stages(WorldWork& w, const Schedule& schedule) const {
    const std::vector<StageRange> ranges = split_layers(run_, schedule.stages);
    const std::vector<int> holder = rank_of_stages(schedule);
    std::vector<HeldParameters> held(schedule.ranks.size());
    const auto hold = [&](size_t stage, const HeldParameters& h) {
      HeldParameters& of = held[size_t(holder[stage])];
      of.dense += h.dense, of.experts += h.experts;
    };
    for (size_t s = 0; s < ranges.size(); s++) {
      const int first = int(of_rank_[size_t(holder[s])]) * kWorkLayers;  // in w.kinds
      StageWork& stage = w.stages.emplace_back();
      if (ranges[s].embedding)
        stage.layers.push_back({"embed", first + kEmbeddingLayer}), hold(s, {table_held(c_), 0});
      for (int64_t b = ranges[s].first; b < ranges[s].last; b++) {
        const bool experts = c_.model.expert_block(b);
        stage.layers.push_back({fmt::format("blocks.{}", b), first + (experts ? kExpertLayer : kDenseLayer)});
        hold(s, layer_held(c_, experts));
      }
      if (!ranges[s].head) continue;
      stage.layers.push_back({"head", first + kHeadLayer});
      if (w.kinds[kHeadLayer].state > 0) hold(s, {table_held(c_), 0});
    }
    for (size_t r = 0; r < held.size(); r++) w.update.push_back(by_[of_rank_[r]]->prices().update(held[r]));
  }

  const RunSpec& run_;
  StepCase c_;
  FitValues f_;
  std::vector<std::unique_ptr<DevicePrices>> by_;
  std::vector<size_t> of_rank_;  // place in by_, by pipeline rank
};

}  // namespace

void set_layout_keys(StepCase& c, const LayoutSpec& l) {
  c.sequence = l.sequence || c.tp == 1;
  c.cut = l.cut == "even" ? StageCut::even : StageCut::by_cost;
  c.cp_overlap = l.cp_overlap;
  if (c.cp > 1 && placement_of(l) != ContextPlacement::zigzag)  // which is balanced
    c.cp_busiest = imbalance(placement_of(l), int(c.cp), c.seq);
  c.ep_buffer = l.ep_buffer;
  if (c.ep > 1) c.ep_load = std::min(l.ep_load.number, double(c.ep));
  c.prefetch = l.prefetch;
  c.reshard_after_forward = l.reshard_after_forward;
  c.reshard_last = l.reshard_last;
}

StepCase on_kind(StepCase c, const DeviceKinds::Kind& kind) {
  if (c.offload > 0) c.offload = c.offload_each_way ? kind.host : kind.disk;
  return c;
}

StepCase step_case_of(const ScaledRun& s) {
  const RunSpec run = with_expected_load(s.run);
  const LayoutSpec& l = run.layout;
  refuse_unpriced(s);
  StepCase c{.model = run.model,
             .seq = run.data.seq_len,
             .window = s.window,
             .window_share = s.window_share,
             .expert_bias = s.expert_bias};
  c.tp = l.tp, c.pp = l.pp, c.dp = l.dp, c.cp = l.cp, c.ep = l.ep;
  c.micro = run.batch.micro, c.microbatches = run.microbatches(), c.chunks = l.chunks;
  c.zero = effective_zero(l), c.nearest = nearest_of(l.order);
  set_layout_keys(c, l);
  c.stage_layers = interned(NumberList(l.stage_layers.begin(), l.stage_layers.end()));
  c.recompute = l.recompute == "full" ? 1 : 0;
  c.renorm = l.recompute == "selective";
  c.grad_bytes = run.precision.reduce == "bf16" ? 2 : 4;
  c.grad_stored = run.precision.grads == "bf16" ? 2 : 4;
  c.keeping.optimizer =
      double(state_bytes_per_parameter("bf16", "bf16", run.precision.moments)[size_t(Bucket::optimizer)]);
  c.attention = s.attention;
  c.shards = l.shard_group, c.software = s.software, c.cast = c.grad_stored != c.grad_bytes;
  if (l.offloads_state()) c.offload = s.offload, c.offload_each_way = s.offload_each_way;
  if (run.precision.compute == "fp8") c.numbers = NumberType::fp8;
  if (run.precision.fp8 != "none" && s.figures.fp8 > 0) c.numbers = NumberType::fp8;  // else emulated
  if (c.numbers == NumberType::fp8 && s.figures.fp8 == 0)
    bad_request("precision.compute = \"fp8\": this device is not known to have it; right is \"bf16\"");
  return c;
}

double beside_bytes(const RunSpec& run) {
  return run.train.device == "cuda" ? constants_of({})[size_t(Fit::base)] : 0;
}

World world_of(const ScaledRun& s) {
  World w{
      .mesh = mesh_of(s.run.layout), .schedule = schedule_of(s.run), .work = {}, .node = 8, .disturbed = {}};
  w.work = WorkWriter(s).run(w.schedule);
  w.node = std::max(1, int(s.figures.near));
  return w;
}

}  // namespace trireme
