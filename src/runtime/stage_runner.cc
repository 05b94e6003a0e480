#include "runtime/stage_runner.h"

#include <algorithm>
#include <cmath>

#include "base/timed.h"
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
  require(mode == RunMode::train || !comms_, "several ranks train; inference is one rank's");
  sharing_.layers.waited_s = &result_.comm_s;
  sharing_.layers.chunks = run.layout.tp_chunks;
  if (sharing_.layers.tp && run.layout.tp_chunks > 1) sharing_.layers.tp_stream = device.stream("tp");
  if (sharing_.layers.ep) {
    sharing_.layers.ep_stream = device.stream("ep");
    const int64_t tokens = run.batch.micro * run.data.seq_len / (sharing_.tp.size * sharing_.cp.size);
    const int64_t rows = tokens * run.model.experts_per_token;
    sharing_.layers.expert_rows =
        std::min(int64_t(std::ceil(run.layout.ep_buffer * double(rows))), rows * sharing_.layers.ep->size());
    if (run.known_routing.rows && !device.has_data())
      routing_.expect(run.known_routing.rows, comms_->mesh().group(comms_->rank(), std::array{Axis::ep}),
                      run.layout.dp * run.batch.micro);
  }
  if (sharing_.layers.cp.comm && !sharing_.layers.cp.ulysses && run.layout.cp_overlap)
    sharing_.layers.cp.stream = device.stream("cp");
  std::vector<std::vector<ParamDecl>> decls = stage_.declare();
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
  for (size_t i = 0; i < microbatches_.size(); i++)
    microbatches_[i].resize(stage_.layers.size(), chunks_.size(), chunks_with(int(i)));
  if (mode == RunMode::train && run.layout.offloads_inputs()) {
    const int64_t places = most_away();
    offload_ = std::make_unique<OffloadStore>(offload_to(run), device, places, places * kept_bytes());
    offload_places_ = size_t(places);
    free_places();
  }
  prepare_post_validation();
  sequence_loss_.resize(size_t(microbatches * run.batch.micro) + 1);
  global_loss_.resize(size_t(run.batch.global));
  if (comms_) gathered_loss_.resize(sequence_loss_.size() * size_t(comms_->world()));
  size_t rows = size_t(run.batch.micro * run.data.seq_len);
  token_loss_host_.resize(rows);
  staging_.resize((run.data.separate() ? 4 : 3) * rows);
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
    std::vector<uint32_t>& units = units_of_layer_.emplace_back();
    for (size_t u = 0; u < params_.units.size(); u++)
      if (params_.units[u].layer == l) units.push_back(uint32_t(u));
    for (const ParamDecl& d : decls[l])
      for (size_t u = 0; u < params_.units.size(); u++)
        for (size_t i = params_.units[u].first; i < params_.units[u].last; i++)
          if (!d.tied_to.empty() && params_.params[i].decl.name == d.tied_to) units.push_back(uint32_t(u));
  }
  seen_.resize(params_.units.size());
}

void StageRunner::bind_memory() {
  auto hold = [&](Bucket b, int64_t n, DType t) {
    persistent_.emplace_back(*arena_, b, Shape{n}, t);
    return *persistent_.back();
  };
  const int64_t all = params_.numel, part = params_.part;
  flat_.place = sharing_.place, flat_.experts = sharing_.expert_place;
  flat_.weights = hold(Bucket::weights, sharing_.zero == 3 ? part : all, dtype_);
  flat_.master = flat_.weights;
  if (mode_ == RunMode::train) {
    flat_.grads = hold(Bucket::grads, sharing_.zero >= 2 ? part : all, grad_dtype_);
    if (run_.layout.offloads_state()) {
      hold_state();
    } else {
      if (dtype_ != DType::f32) flat_.master = hold(Bucket::optimizer, part, DType::f32);
      for (const StateDecl& s : state_decls_)
        flat_.state.push_back(hold(
            Bucket::optimizer, s.of_hidden ? part : others_numel(params_, sharing_.place.shards), s.dtype));
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
  sync_ = std::make_unique<GradSync>(params_, flat_,
                                     GradSyncOptions{.zero = sharing_.zero,
                                                     .wire = wire,
                                                     .bucket_bytes = int64_t(run_.layout.bucket_mb * 1e6),
                                                     .prefetch = run_.layout.prefetch},
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
      if (mode_ == RunMode::train && (sharing_.zero < 2 || !divided)) p.grad = at(p, flat_.grads);
    }
  }
}

// So that sums over padding are zero, and what is gathered is the same on every run.
void StageRunner::zero_padding() {
  std::vector<Tensor> buffers = {flat_.weights, flat_.grads, flat_.master};
  for (size_t i = 0; i < flat_.state.size(); i++)
    if (state_decls_[i].of_hidden) buffers.push_back(flat_.state[i]);
  for (const Tensor& t : buffers) {
    if (waits(t)) continue;  // zero as it was taken
    for (const Unit& u : params_.units) {
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

Ctx StageRunner::context(const Microbatch& m, bool backward) {
  device_.kernels().attach(arena_.get());  // several runners may share a device
  return Ctx{.device = device_,
             .k = device_.kernels(),
             .arena = *arena_,
             .compute = compute_,
             .dtype = dtype_,
             .batch = m.view,
             .backward = backward,
             .training = backward,
             .seed = uint64_t(run_.train.seed),
             .step = step_,
             .grad_scale = float(loss_scale_.scale() / double(std::max<int64_t>(1, targets_))),
             .loss_scale = loss_scale_.scale(),
             .batch_tokens = global_at(run_.batch, step_) * run_.data.seq_len,
             .token_loss = m.token_loss ? *m.token_loss : Tensor(),
             .logits = {},
             .layer = layer_,
             .groups = sharing_.layers,
             .routing = &routing_,
             .fp8 = backward ? fp8() : nullptr};
}

// seq: of whole sequences, which every rank reads; of these it keeps what is its own.
void StageRunner::load_batch(Microbatch& m, int64_t sequences, int64_t seq, int64_t step, int64_t mb,
                             const FillBatch& fill) {
  size_t rows = size_t(sequences * seq);
  const bool documents = run_.data.separate();
  if (staging_.size() < (documents ? 4 : 3) * rows) staging_.resize((documents ? 4 : 3) * rows);
  HostBatch host{.tokens = {staging_.data(), rows},
                 .targets = {staging_.data() + rows, rows},
                 .positions = {staging_.data() + 2 * rows, rows}};
  {
    Timed t(result_.data_s);
    TraceScope traced(tracer_.get(), SpanKind::wait, "data", mb);
    if (device_.has_data()) fill(step, mb, host);
  }
  const ContextPlace place = sharing_.layers.cp.place();
  const std::span<int32_t> first = std::span(staging_).subspan(3 * rows);
  if (documents && device_.has_data())
    document_starts(host.positions, seq, sharing_.layers.cp.ulysses ? ContextPlace{} : place,
                    first.first(rows));
  if (device_.has_data())
    for (std::span<int32_t> t : {host.tokens, host.targets, host.positions}) keep_own(t, seq, place);
  m.allocate_batch(*arena_, sequences, seq / place.size, documents ? int64_t(rows) : 0);
  if (documents) device_.upload(m.view.documents, first.data());
  device_.upload(m.view.tokens, host.tokens.data());
  device_.upload(m.view.targets, host.targets.data());
  device_.upload(m.view.positions, host.positions.data());
  // Other batches may be staged before this one's losses are read.
  m.own_targets = 0;
  for (int64_t i = 0; device_.has_data() && i < m.view.rows(); i++)
    m.own_targets += host.targets[size_t(i)] >= 0;
}

// The first chunk to run loads the batch: every stage wants positions, and the last one targets.
void StageRunner::forward(Microbatch& m, const Chunk& c, int64_t mb, const FillBatch& fill) {
  if (!m.tokens) load_batch(m, run_.batch.micro, run_.data.seq_len, step_, mb, fill);
  m.view.first_sequence = (mb * sharing_.dp + sharing_.dp_rank) * run_.batch.micro;
  Timed t(result_.forward_s);
  // The stage before is on this rank too.
  if (!c.embedding && !m.x[c.slot]) m.x[c.slot] = std::move(m.x[c.slot - 1]);
  Ctx ctx = context(m, true);
  for (size_t l = c.first, at = c.slot; l < c.last; l++, at++) {
    use_weights(l);
    m.x[at + 1] = stage_.layers[l]->forward(ctx, *m.x[at], m.saved[l]);
    let_weights_go(l);
    let_activations_go(m, l, at);
  }
  settle_away();
  if (c.head) read_losses(m, mb);
}

void StageRunner::use_weights(size_t layer) {
  if (pulse_) pulse_->layer(stage_.layers[layer]->name());
  if (!sync_) return;
  for (uint32_t u : units_of_layer_[layer]) sync_->need(u);
}
void StageRunner::let_weights_go(size_t layer) {
  if (!sync_) return;
  for (uint32_t u : units_of_layer_[layer]) sync_->done(u);
}

// Of a layer only its experts.
void StageRunner::use_experts(size_t layer) {
  for (uint32_t u : units_of_layer_[layer])
    if (params_.units[u].experts) sync_->need(u);
}
void StageRunner::let_experts_go(size_t layer) {
  for (uint32_t u : units_of_layer_[layer])
    if (params_.units[u].experts) sync_->done(u);
}

// The uses of W, in its order.
void StageRunner::add_experts_pass(const Chunk& c, bool release) {
  for (size_t l = c.last; l-- > c.first;)
    for (uint32_t u : units_of_layer_[l])
      if (params_.units[u].experts) walk_.push_back({u, release});
}

// The uses of one pass over the layers. A unit that two layers use is kept from the first to the last.
void StageRunner::add_pass(const Chunk& c, bool forward, bool release, bool recomputed, bool keep_last) {
  const size_t begin = walk_.size();
  for (size_t i = 0; i < c.last - c.first; i++) {
    const size_t layer = forward ? c.first + i : c.last - 1 - i;
    if (recomputed && !recompute_[layer].any()) continue;
    for (uint32_t u : units_of_layer_[layer]) walk_.push_back({u, false});
  }
  if (!release) return;
  std::fill(seen_.begin(), seen_.end(), 0);
  if (keep_last)
    for (uint32_t u : units_of_layer_[c.last - 1]) seen_[u] = 1;
  for (size_t i = walk_.size(); i-- > begin;) {
    walk_[i].release = !seen_[walk_[i].unit];
    seen_[walk_[i].unit] = 1;
  }
}

// Token losses are added in double, per sequence; global_loss() adds sequences in order of global index.
void StageRunner::read_losses(const Microbatch& m, int64_t mb) {
  device_.download(token_loss_host_.data(), *m.token_loss);
  if (!device_.has_data()) return;
  int64_t seq = m.view.seq;
  for (int64_t s = 0; s < m.view.sequences; s++) {
    double sum = 0;
    for (int64_t t = 0; t < seq; t++) sum += token_loss_host_[size_t(s * seq + t)];
    sequence_loss_[size_t(mb * run_.batch.micro + s)] = sum;
  }
  targets_seen_ += m.own_targets;
}

// I and W of each layer in turn when both are asked for, so a layer's memory is free before the next begins.
// reduce: this rank's sum of the layer's gradients is complete then, and goes to the other ranks.
void StageRunner::backward(Microbatch& m, const Chunk& c, bool input, bool weight, bool reduce) {
  Timed t(result_.backward_s);
  // The stage behind is on this rank too.
  if (input && !c.head && !m.dx[c.end_slot()]) m.dx[c.end_slot()] = std::move(m.dx[c.end_slot() + 1]);
  Ctx ctx = context(m, true);
  // Experts over ranks may compute rows again, for which W wants the weights too (expert_exchange.h).
  const bool again = weight && sharing_.layers.ep, kept = input && again;
  if (weight) weights_left_[c.number]--;
  for (size_t l = c.last, at = c.end_slot(); l-- > c.first;) {
    at--;
    if (input) {
      fetch(m, at);
      if (l > c.first) fetch(m, at - 1);  // travels meanwhile
      use_weights(l);
      recompute(m, ctx, l, at);
      m.dx[at] = stage_.layers[l]->backward_input(ctx, *m.dx[at + 1], m.saved[l]);
      if (!kept) let_weights_go(l);
    }
    if (!weight) continue;
    for (uint32_t u : units_of_layer_[l]) sync_->open(u);
    if (again && !input) use_experts(l);
    stage_.layers[l]->backward_weight(ctx, m.saved[l]);
    require(m.saved[l].empty(), "a layer kept something beyond its backward pass");
    if (kept) let_weights_go(l);
    if (again && !input) let_experts_go(l);
    if (reduce) reduce_layer(l);
    m.dx[at + 1].reset();
    m.x[at].reset();
  }
  if (weight && ++m.chunks_done == m.chunks) m.release_batch();
}

// [rows, hidden] of this rank's part of a microbatch, as they pass from stage to stage.
Owned StageRunner::boundary(int64_t sequences, int64_t seq) {
  const int64_t rows = sequences * seq / (run_.layout.sequence ? sharing_.tp.size : 1);
  return Owned(*arena_, Bucket::activations, {rows, run_.model.hidden}, dtype_);
}

// Memory for what comes, and the receive on its way: before the action that computes before it, so that it
// travels meanwhile.
void StageRunner::post_receive(const Action& a) {
  Microbatch& m = microbatches_.at(size_t(a.mb));
  const Chunk& c = chunk_of(a.stage);
  const bool forward = a.kind == Act::RecvF;
  Owned& into = forward ? m.x[c.slot] : m.dx[c.end_slot()];
  if (into) return;
  into = boundary(run_.batch.micro, run_.data.seq_len / sharing_.cp.size);
  (forward ? m.x_here : m.dx_here)[c.number] =
      pipeline_->receive(forward ? PipelineComm::forward : PipelineComm::backward,
                         pipeline_->rank_of(a.stage + (forward ? -1 : 1), a.mb), *into);
}

// Those that the next action that computes will want.
void StageRunner::post_receives(std::span<const Action> next) {
  for (const Action& a : next) {
    if (a.kind == Act::RecvF || a.kind == Act::RecvB) post_receive(a);
    if (a.kind == Act::F || a.kind == Act::B || a.kind == Act::I || a.kind == Act::W) return;
  }
}

void StageRunner::receive(const Action& a) {
  post_receive(a);
  Microbatch& m = microbatches_.at(size_t(a.mb));
  pipeline_->wait((a.kind == Act::RecvF ? m.x_here : m.dx_here)[chunk_of(a.stage).number]);
}

void StageRunner::send(const Action& a, int action) {
  Microbatch& m = microbatches_.at(size_t(a.mb));
  const Chunk& c = chunk_of(a.stage);
  if (a.kind == Act::SendF)
    pipeline_->send(PipelineComm::forward, pipeline_->rank_of(a.stage + 1, a.mb),
                    std::move(m.x[c.end_slot()]), action);
  else
    pipeline_->send(PipelineComm::backward, pipeline_->rank_of(a.stage - 1, a.mb), std::move(m.dx[c.slot]),
                    action);
}

// A layer completes its own units. A table that two of this rank's stages use is completed by the one of them
// whose weight gradients end last; with ZeRO 2 and 3, where every backward pass reduces, by either.
bool StageRunner::completes(size_t layer, uint32_t unit) const {
  const bool own = params_.units[unit].layer == layer;
  const Chunk &first = chunks_.front(), &last = chunks_.back();
  if (!run_.model.tied || !first.embedding || !last.head || first.stage == last.stage) return own;
  if (!own) return weights_left_[first.number] == 0;
  return layer != first.first || sharing_.zero >= 2 || weights_left_[last.number] == 0;
}

// The last unit first: as units lie.
void StageRunner::reduce_layer(size_t layer) {
  const std::vector<uint32_t>& units = units_of_layer_[layer];
  for (size_t i = units.size(); i-- > 0;)
    if (completes(layer, units[i])) sync_->ready(units[i]);
}

// Evaluations go as microbatch 0 does: of copies one.
void StageRunner::forward_only(Microbatch& m, Ctx& ctx) {
  if (sync_) {
    walk_.clear();
    for (const Chunk& c : chunks_)
      if (passes(c, 0)) add_pass(c, true, true);
    sync_->follow(walk_);
  }
  for (const Chunk& c : chunks_) {
    if (!passes(c, 0)) continue;
    if (!c.embedding && !m.x[0]) {
      m.x[0] = boundary(m.view.sequences, m.view.seq);
      pipeline_->wait(pipeline_->receive(PipelineComm::forward, pipeline_->rank_of(c.stage - 1, 0), *m.x[0]));
    }
    for (size_t l = c.first; l < c.last; l++) {
      use_weights(l);
      Owned y = stage_.layers[l]->forward(ctx, *m.x[0], m.saved[l]);
      let_weights_go(l);
      m.saved[l].clear();
      m.x[0] = std::move(y);
    }
    if (!c.head && pipeline_->rank_of(c.stage + 1, 0) != pipeline_->rank())
      pipeline_->send(PipelineComm::forward, pipeline_->rank_of(c.stage + 1, 0), std::move(m.x[0]), -1);
  }
  m.x[0].reset();
  if (pipeline_) pipeline_->let_all_go();
}

}  // namespace trireme
