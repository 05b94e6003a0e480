#include "runtime/stage_runner.h"

#include <algorithm>
#include <cmath>

#include "base/rounding.h"
#include "base/timed.h"
#include "model/adapters.h"
#include "model/stages.h"
#include "optim/run_lr.h"
#include "runtime/context.h"
#include "runtime/make_optimizer.h"
#include "runtime/microbatch.h"
#include "runtime/offload.h"
#include "runtime/post_validation.h"
#include "runtime/state_offload.h"
#include "spec/batch_ramp.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

LossScale loss_scale_of(const PrecisionSpec& p) {
  if (p.compute != "f16") return {};
  return LossScale({.dynamic = p.loss_scale.dynamic,
                    .initial = p.loss_scale.dynamic ? p.initial_scale : p.loss_scale.number,
                    .backoff = p.backoff_factor,
                    .growth_interval = p.growth_interval,
                    .least = p.min_scale});
}

}  // namespace

StageRunner::StageRunner(const RunSpec& run, RunMode mode, Device& device, int64_t arena_bytes,
                         CommSet* comms)
    : run_(run),
      mode_(mode),
      device_(device),
      comms_(comms && comms->world() > 1 ? comms : nullptr),
      schedules_((comms_ && comms_->mesh().size(Axis::pp) > 1) ||
                         (mode == RunMode::train && run.layout.offloads_inputs())
                     ? schedules_of(run)
                     : std::vector<Schedule>()),
      sharing_(sharing_of(run, comms_, schedules_)),
      compute_(device.stream("compute")),
      dtype_(dtype_from_name(run.precision.compute)),
      grad_dtype_(dtype_from_name(run.precision.grads)),
      memory_(run_, mode == RunMode::train, device, sharing_, arena_bytes),
      arena_(&memory_.arena()),
      stage_(build_stages(run.model, stage_ranges(), comms_ ? comms_->mesh() : Mesh(),
                          comms_ ? comms_->rank() : 0, run.layout.sequence, run.moe)),
      params_(memory_.params()),
      flat_(memory_.flat()),
      routing_(run.model.layers),
      lr_(lr_schedule_of(run)),
      loss_scale_(loss_scale_of(run.precision)),
      spikes_({.active = run.train.spikes != "off",
               .z = run.train.spike_z,
               .window = run.train.spike_window,
               .limit = run.train.spike_limit}) {
  if (divided()) {
    static constexpr Axis kAnswers[] = {Axis::pp, Axis::cp};
    require(sharing_.zero == 0 && !run.layout.sequence, "ranks of inference have whole units and rows");
    require(sharing_.cp.size == 1 || placement_of(run.layout) == ContextPlacement::contiguous,
            "ranks of inference have contiguous parts of a text");
    if (sharing_.pp.size * sharing_.cp.size > 1) answers_ = &comms_->along(kAnswers);
  }
  sharing_.layers.waited_s = &result_.comm_s;
  sharing_.layers.chunks = run.layout.tp_chunks;
  if (sharing_.layers.tp && run.layout.tp_chunks > 1) sharing_.layers.tp_stream = device.stream("tp");
  if (sharing_.layers.ep) {
    sharing_.layers.ep_stream = device.stream("ep");
    sharing_.layers.expert_rows = expert_rows(run.batch.micro * run.data.seq_len / sharing_.cp.size);
    if (run.known_routing.rows && !device.has_data())
      routing_.expect(run.known_routing.rows, comms_->mesh().group(comms_->rank(), std::array{Axis::ep}),
                      run.layout.dp * run.batch.micro);
  }
  if (sharing_.layers.cp.comm && !sharing_.layers.cp.ulysses && run.layout.cp_overlap)
    sharing_.layers.cp.stream = device.stream("cp");
  std::vector<std::vector<ParamDecl>> decls = stage_.declare();
  if (run.lora.active()) {
    const StageRange whole{.first = 0, .last = run.model.layers};
    refuse_idle_targets(build_stage(run.model, whole).declare(), run.lora);
    add_adapters(decls, run.lora);
  }
  params_ = comms_ ? lay_out(decls, comms_->mesh(), comms_->rank(), sharing_.place.shards,
                             sharing_.expert_place.shards)
                   : lay_out(decls, Mesh(), 0);
  find_units(decls);
  find_recompute();
  optimizer_ = make_optimizer(run, params_, sharing_, device_, *arena_);
  device_.kernels().attach(arena_);
  bind_memory();
  bind_rope();
  bind_fp8();
  stage_.bind(params_);
  const int64_t microbatches = run.batch.global / (sharing_.dp * run.batch.micro);
  microbatches_.resize(size_t(microbatches));
  for (Microbatch& m : microbatches_) m.resize(stage_.layers.size(), chunks_.size());
  prepare_post_validation();
  turns_.other_pass = [this] { let_other_pass_run(); };
  lower_programs();
  if (mode == RunMode::train && run.layout.offloads_inputs()) {
    const int64_t places = most_away();
    offload_ = std::make_unique<OffloadStore>(offload_to(run), device, places, places * kept_bytes());
    offload_places_ = size_t(places);
    free_places();
  }
  sequence_loss_.resize(size_t(microbatches * run.batch.micro) + 1);
  global_loss_.resize(size_t(run.batch.global));
  if (comms_) gathered_loss_.resize(sequence_loss_.size() * size_t(comms_->world()));
  size_t rows = size_t(run.batch.micro * run.data.seq_len);
  token_loss_host_.resize(rows);
  staging_.resize((run.data.separate() ? 4 : 3) * rows);
}

// Rows of other ranks that a rank's experts have room for at once, in a pass over `tokens` tokens of this
// rank of cp.
int64_t StageRunner::expert_rows(int64_t tokens) const {
  const int64_t own = divided() ? div_up(tokens, sharing_.tp.size) : tokens / sharing_.tp.size;
  const int64_t rows = own * run_.model.experts_per_token;
  return std::min(int64_t(std::ceil(run_.layout.ep_buffer * double(rows))),
                  rows * sharing_.layers.ep->size());
}

// Fills chunks_ besides.
std::vector<StageRange> StageRunner::stage_ranges() {
  std::vector<StageRange> mine;
  std::vector<int> stages = {0};
  if (sharing_.pp.size > 1) {
    pipeline_ = std::make_unique<PipelineComm>(schedules_, *comms_, device_);
    const std::vector<StageRange> all = split_layers(run_, schedules_.back().stages);
    stages = pipeline_->holders().stages_of(sharing_.pp.rank);
    for (int s : stages) mine.push_back(all[size_t(s)]);
  } else {
    mine.push_back({.first = 0, .last = run_.model.layers});
  }
  size_t layer = 0;
  for (size_t c = 0; c < mine.size(); c++) {
    chunks_.push_back({.stage = stages[c],
                       .number = c,
                       .first = layer,
                       .last = layer + mine[c].layers(),
                       .slot = layer + c,
                       .embedding = mine[c].embedding,
                       .head = mine[c].head});
    layer += mine[c].layers();
  }
  return mine;
}

std::span<const PipelineComm::Lane> StageRunner::pipeline_lanes() const {
  return pipeline_ ? pipeline_->lanes() : std::span<const PipelineComm::Lane>();
}

const StageRunner::Chunk& StageRunner::chunk_of(int stage) const {
  for (const Chunk& c : chunks_)
    if (c.stage == stage) return c;
  run_failed("the schedule has stage {} on a rank that does not hold it", stage);
}

StageRunner::~StageRunner() {
  device_.forget_actions(this);
  sync_.reset();
  post_.reset();
  settle_layers();
  offload_.reset();
  leaving_.reset();
  pipeline_.reset();
  microbatches_.clear();
  cache_.reset();
  grad_norm_.reset();
  local_norms_.reset();
}

// After an error collectives of layers may be under way: who ended the run has told the group, so they come
// to an end.
void StageRunner::settle_layers() {
  for (Stream s : {sharing_.layers.tp_stream, sharing_.layers.ep_stream, sharing_.layers.cp.stream}) {
    if (s.id == 0) continue;
    try {
      device_.sync(s);
    } catch (const std::exception&) {
      // What ended the run is told by whoever caught it.
    }
  }
}

// A layer uses its own units, and that of the parameter it is tied to.
void StageRunner::find_units(std::span<const std::vector<ParamDecl>> decls) {
  for (size_t l = 0; l < decls.size(); l++) {
    LayerShape& layer = shape_.layers.emplace_back();
    layer.name = stage_.layers[l]->name();
    std::vector<uint32_t>& units = layer.units;
    for (size_t u = 0; u < params_.units.size(); u++)
      if (params_.units[u].layer == l) units.push_back(uint32_t(u));
    for (const ParamDecl& d : decls[l])
      for (size_t u = 0; u < params_.units.size(); u++)
        for (size_t i = params_.units[u].first; i < params_.units[u].last; i++)
          if (!d.tied_to.empty() && params_.params[i].decl.name == d.tied_to) units.push_back(uint32_t(u));
  }
}

void StageRunner::bind_memory() {
  const bool trains = mode_ == RunMode::train;
  memory_.hold_flat(trains ? optimizer_->state() : std::vector<StateDecl>());
  if (trains) {
    grad_norm_ = std::make_unique<GradNorm>(params_, flat_, *arena_);
    if (run_.train.noise_scale > 0) make_local_norms();
  }
  nonfinite_count_ = memory_.hold(Bucket::scratch, Shape{1}, DType::i64);
  memory_.bind();
  if (!trains) return;
  const DType wire = comms_ ? dtype_from_name(run_.precision.reduce) : grad_dtype_;
  sync_ = std::make_unique<GradSync>(params_, flat_, GradSyncOptions{.zero = sharing_.zero, .wire = wire},
                                     sharing_.replicating, sharing_.experts, comms_, device_, *arena_);
}

int64_t StageRunner::waiting_bytes() const {
  const StateOffload* state = memory_.state_offload();
  return (offload_ ? offload_->host_bytes() : 0) + (state ? state->host_bytes() : 0);
}

}  // namespace trireme
