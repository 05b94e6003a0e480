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

OffloadTo offload_to(const RunSpec& r) {
  return {.folder = r.layout.offload_dir.empty() ? r.train.dir : r.layout.offload_dir,
          .host = r.layout.offload_to == "host"};
}

}  // namespace

StageRunner::StageRunner(const RunSpec& run, RunMode mode, Device& device, int64_t arena_bytes,
                         CommSet* comms)
    : run_(run),
      mode_(mode),
      device_(device),
      comms_(comms && comms->world() > 1 ? comms : nullptr),
      sharing_(sharing_of(run, comms_)),
      compute_(device.stream("compute")),
      dtype_(dtype_from_name(run.precision.compute)),
      grad_dtype_(dtype_from_name(run.precision.grads)),
      memory_(device.reserve(arena_bytes)),
      memory_bytes_(arena_bytes),
      arena_(std::make_unique<Arena>(memory_, arena_bytes)),
      stage_(build_stages(run.model, stage_ranges(), comms_ ? comms_->mesh() : Mesh(),
                          comms_ ? comms_->rank() : 0, run.layout.sequence, run.moe)),
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
  if (mode == RunMode::train) state_decls_ = optimizer_->state();
  device_.kernels().attach(arena_.get());
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
  if (comms_ && sharing_.pp.size > 1) {
    const std::vector<Schedule> schedules = schedules_of(run_);
    const Schedule& schedule = schedules.back();
    pipeline_ = std::make_unique<PipelineComm>(schedules, *comms_, device_);
    const std::vector<StageRange> all = split_layers(run_, schedule.stages);
    stages = pipeline_->holders().stages_of(sharing_.pp.rank);
    for (int s : stages) mine.push_back(all[size_t(s)]);
    share_ends(schedule);
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

// What ranks with the same layers, or with the same table, say to each other.
void StageRunner::share_ends(const Schedule& schedule) {
  const int last = schedule.stages - 1;
  sharing_.head_ranks = {pipeline_->rank_of(last, 0)};
  if (schedule.copies > 1) return share_copies();
  const int ends[] = {pipeline_->rank_of(0, 0), sharing_.head_rank()};
  static constexpr Axis kPp[] = {Axis::pp};
  if (run_.model.tied && ends[0] != ends[1] && (sharing_.pp.rank == ends[0] || sharing_.pp.rank == ends[1]))
    shared_ = &comms_->some(kPp, ends, "tied");
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
  state_offload_.reset();
  leaving_.reset();
  pipeline_.reset();
  microbatches_.clear();
  cache_.reset();
  grad_norm_.reset();
  local_norms_.reset();
  persistent_.clear();
  device_.kernels().detach(arena_.get());
  device_.release(memory_, memory_bytes_);
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
  auto hold = [&](Bucket b, int64_t n, DType t) {
    persistent_.emplace_back(*arena_, b, Shape{n}, t);
    return *persistent_.back();
  };
  const int64_t all = params_.numel, part = params_.part;
  const int64_t trained = params_.trained, trained_part = params_.trained_part;
  flat_.place = sharing_.place, flat_.experts = sharing_.expert_place;
  flat_.weights = hold(Bucket::weights, sharing_.zero == 3 ? part : all, dtype_);
  flat_.master = flat_.weights;
  if (mode_ == RunMode::train) {
    flat_.grads = hold(Bucket::grads, sharing_.zero >= 2 ? trained_part : trained, grad_dtype_);
    if (run_.layout.offloads_state()) {
      hold_state();
    } else {
      if (dtype_ != DType::f32) flat_.master = hold(Bucket::optimizer, trained_part, DType::f32);
      for (const StateDecl& s : state_decls_)
        flat_.state.push_back(hold(Bucket::optimizer,
                                   s.of_hidden ? trained_part : others_numel(params_, sharing_.place.shards),
                                   s.dtype));
    }
    grad_norm_ = std::make_unique<GradNorm>(params_, flat_, *arena_);
    if (run_.train.noise_scale > 0) make_local_norms();
  }
  nonfinite_count_ = hold(Bucket::scratch, 1, DType::i64);
  for (Param& p : params_.buffers) p.weight = hold(Bucket::weights, p.numel(), DType::f32).view(p.box.extent);
  bind_views();
  zero_padding();
  if (mode_ != RunMode::train) return;
  const DType wire = comms_ ? dtype_from_name(run_.precision.reduce) : grad_dtype_;
  sync_ = std::make_unique<GradSync>(params_, flat_, GradSyncOptions{.zero = sharing_.zero, .wire = wire},
                                     sharing_.replicating, sharing_.experts, comms_, device_, *arena_);
}

// Outside: by state_decls_, then the master copy where weights are none themselves.
void StageRunner::hold_state() {
  const bool master = dtype_ != DType::f32;
  const size_t kinds = state_decls_.size() + master;
  state_offload_ = std::make_unique<StateOffload>(offload_to(run_), device_, *arena_, params_, flat_, kinds,
                                                  int64_t(run_.layout.offload_mb * 1e6));
  for (size_t i = 0; i < state_decls_.size(); i++) {
    require(state_decls_[i].of_hidden && state_decls_[i].dtype == DType::f32,
            "state that waits in a file is f32, of all parameters");
    flat_.state.push_back(state_offload_->home(i));
  }
  if (master) flat_.master = state_offload_->home(kinds - 1);
}

// Of flat_'s buffers: is it memory that ops do not reach?
bool StageRunner::waits(const Tensor& state) const {
  return state_offload_ && state.data != flat_.weights.data && state.data != flat_.grads.data;
}

int64_t StageRunner::waiting_bytes() const {
  return (offload_ ? offload_->host_bytes() : 0) + (state_offload_ ? state_offload_->host_bytes() : 0);
}

// What is whole is seen from the start; the rest while GradSync has it.
void StageRunner::bind_views() {
  for (const Unit& u : params_.units) {
    const bool divided = flat_.place_of(u).shards > 1;
    auto at = [&](const Param& p, const Tensor& buffer) {
      return p.view(buffer, flat_.whole(buffer, params_) ? p.offset : p.offset - u.offset + u.part_offset);
    };
    for (size_t i = u.first; i < u.last; i++) {
      Param& p = params_.params[i];
      if (sharing_.zero < 3 || !divided) p.weight = at(p, flat_.weights);
      if (mode_ == RunMode::train && !u.frozen && (sharing_.zero < 2 || !divided))
        p.grad = at(p, flat_.grads);
    }
  }
}

// So that sums over padding are zero, and what is gathered is the same on every run.
void StageRunner::zero_padding() {
  std::vector<Tensor> buffers = {flat_.weights, flat_.master};
  if (mode_ == RunMode::train) buffers.push_back(flat_.grads);
  for (size_t i = 0; i < flat_.state.size(); i++)
    if (state_decls_[i].of_hidden) buffers.push_back(flat_.state[i]);
  for (const Tensor& t : buffers) {
    if (waits(t)) continue;  // zero as it was taken
    for (const Unit& u : params_.units) {
      if (!flat_.has(t, u)) continue;
      const Range own = own_part(u, flat_.place_of(u));
      const int64_t begin = flat_.whole(t, params_) ? 0 : own.begin,
                    end = flat_.whole(t, params_) ? u.padded : own.end;
      const int64_t first = std::max(begin, u.numel);
      if (first >= end) continue;
      const Tensor unit =
          flat_.whole(t, params_) ? t.narrow(0, u.offset, u.padded) : flat_.own(t, params_, u);
      device_.kernels().run(ZeroArgs{.y = unit.narrow(0, first - begin, end - first)}, compute_);
    }
  }
}

}  // namespace trireme
