// The passes over a rank's layers, and what a microbatch holds between them: one function per operation of
// the rank's program (program/program.h).
#include <algorithm>

#include "base/timed.h"
#include "runtime/context.h"
#include "runtime/stage_passes.h"
#include "spec/batch_ramp.h"

namespace trireme {
namespace {

// Among the actions of a rank's steps.
int64_t number_of(const Action& a) {
  return int64_t(a.mb + 1) << 32 | int64_t(a.stage) << 8 | int64_t(a.kind);
}

PipelineComm::Way way_of(const Op& op) {
  return op.back ? PipelineComm::backward : PipelineComm::forward;
}

}  // namespace

void StagePasses::start_step(const StepFacts& facts) {
  facts_ = facts;
  times_ = {};
  if (pipeline_) pipeline_waited_s_ = pipeline_->waited_s();
  sequence_loss_.back() = 0;
  routing_.start_step();
  if (fp8_) fp8_->start_step(device_.kernels(), compute_);
}

StageSeconds StagePasses::times() const {
  StageSeconds t = times_;
  if (pipeline_) t.comm_s += pipeline_->waited_s() - pipeline_waited_s_;
  return t;
}

// Messages that travel during the action are issued before what a device may record and run again.
void StagePasses::run_action(const Program& program, const ActionOps& action, const FillBatch& fill) {
  const Act kind = action.action.kind;
  TraceScope traced(watch_.tracer.get(), SpanKind::action, name_of(kind), action.action.mb);
  const bool backward = kind == Act::B || kind == Act::I || kind == Act::W || kind == Act::R;
  double others = 0;
  Timed t(kind == Act::F ? times_.forward_s : backward ? times_.backward_s : others);
  ctx_.reset();
  program_ = &program;
  std::span<const Op> ops = program.of(action);
  while (!ops.empty() && (ops.front().kind == OpKind::free || ops.front().kind == OpKind::post)) {
    run(ops.front(), fill);
    ops = ops.subspan(1);
  }
  device_.begin_action(this, number_of(action.action));
  for (const Op& op : ops) run(op, fill);
  device_.end_action();
}

void StagePasses::run(const Op& op, const FillBatch& fill) {
  if (watch_.control.op) watch_.control.op(op);
  switch (op.kind) {
    case OpKind::forward:
      tell_layer(op);
      return forward(op);
    case OpKind::again:
      tell_layer(op);
      return recompute(op);
    case OpKind::input:
      tell_layer(op);
      return input(op);
    case OpKind::weight:
      return weight(op);
    case OpKind::load:
      return load(op, fill);
    case OpKind::drop:
      return drop(op);
    case OpKind::left:
      return settle_away();
    case OpKind::losses:
      return read_losses(op);
    case OpKind::fetch:
      return fetch(place_of(op));
    case OpKind::clear:
      return clear(op);
    case OpKind::unload:
      return microbatches_[size_t(op.mb)].release_batch();
    case OpKind::post:
      return post_receive(op);
    case OpKind::receive:
      return receive(op);
    case OpKind::send:
      return send(op);
    case OpKind::free:
      return pipeline_->free(op.after);
    default:
      if (op.kind == OpKind::arrive) tell_layer(op);
      return units_(op);
  }
}

void StagePasses::tell_layer(const Op& op) const {
  if (watch_.pulse && op.layer >= 0) watch_.pulse->layer(shape_.layers[size_t(op.layer)].name);
}

void StagePasses::abandon() {
  for (Microbatch& m : microbatches_) m.abandon();
  free_places();
}

void StagePasses::abandon(std::span<const Action> unread) {
  abandon();
  for (const Action& a : unread) {
    const Owned into = boundary(run_.batch.micro, run_.data.seq_len / sharing_.cp.size);
    pipeline_->wait(pipeline_->receive(PipelineComm::forward, pipeline_->rank_of(a.stage - 1, a.mb), *into));
  }
  if (pipeline_) pipeline_->free_all();
}

Ctx StagePasses::context(const Microbatch& m, bool backward) {
  device_.kernels().attach(&arena_);  // several runners may share a device
  return Ctx{.device = device_,
             .k = device_.kernels(),
             .arena = arena_,
             .compute = compute_,
             .dtype = dtype_,
             .batch = m.view,
             .backward = backward,
             .training = backward,
             .seed = uint64_t(run_.train.seed),
             .step = facts_.step,
             .grad_scale = float(facts_.loss_scale / double(std::max<int64_t>(1, facts_.targets))),
             .loss_scale = facts_.loss_scale,
             .batch_tokens = global_at(run_.batch, facts_.step) * run_.data.seq_len,
             .token_loss = m.token_loss ? *m.token_loss : Tensor(),
             .logits = {},
             .layer = watch_.layer,
             .groups = groups_,
             .routing = &routing_,
             .fp8 = backward ? fp8() : nullptr};
}

HostBatch StagePasses::load_batch(Microbatch& m, int64_t sequences, int64_t seq, int64_t step, int64_t mb,
                                  const FillBatch& fill, const ContextPlace& place) {
  size_t rows = size_t(sequences * seq);
  const bool documents = run_.data.separate();
  const bool data =
      device_.has_data();  // meta stages nothing: a sequence may be longer than the host's memory
  if (data && staging_.size() < (documents ? 4 : 3) * rows) staging_.resize((documents ? 4 : 3) * rows);
  const auto part = [&](size_t i) {
    return data ? std::span(staging_).subspan(i * rows, rows) : std::span<int32_t>();
  };
  HostBatch host{.tokens = part(0), .targets = part(1), .positions = part(2)};
  {
    Timed t(times_.data_s);
    TraceScope traced(watch_.tracer.get(), SpanKind::wait, "data", mb);
    if (data) fill(step, mb, host);
  }
  const std::span<int32_t> first = documents ? part(3) : std::span<int32_t>();
  if (documents && data)
    document_starts(host.positions, seq, groups_.cp.ulysses ? ContextPlace{} : place, first);
  if (data)
    for (std::span<int32_t> t : {host.tokens, host.targets, host.positions}) keep_own(t, seq, place);
  m.allocate_batch(arena_, sequences, seq / place.size, documents ? int64_t(rows) : 0);
  if (documents) device_.upload(m.view.documents, first.data());
  device_.upload(m.view.tokens, host.tokens.data());
  device_.upload(m.view.targets, host.targets.data());
  device_.upload(m.view.positions, host.positions.data());
  // Other batches may be staged before this one's losses are read.
  m.own_targets = 0;
  for (int64_t i = 0; data && i < m.view.rows(); i++) m.own_targets += host.targets[size_t(i)] >= 0;
  return host;
}

// The context of a pass over a layer; the same for all layers of an action.
Ctx& StagePasses::pass_context(const Microbatch& m) {
  const bool interleaved = turns_.mb >= 0;
  std::optional<Ctx>& ctx = interleaved && &m == &microbatches_[size_t(turns_.mb)] ? turns_.ctx : ctx_;
  if (!ctx) {
    ctx.emplace(context(m, true));
    if (interleaved) ctx->groups.other_pass = &turns_.other_pass;
  }
  return *ctx;
}
StagePasses::Place StagePasses::place_of(const Op& op) {
  const Chunk& c = chunk_of(op.stage);
  const auto layer = size_t(op.layer);
  return {microbatches_.at(size_t(op.mb)), c, layer, c.slot + layer - c.first};
}

// Every stage wants positions, and the last one targets.
void StagePasses::load(const Op& op, const FillBatch& fill) {
  Microbatch& m = microbatches_.at(size_t(op.mb));
  load_batch(m, run_.batch.micro, run_.data.seq_len, facts_.step, op.mb, fill, groups_.cp.place());
  m.view.first_sequence = (op.mb * sharing_.dp + sharing_.dp_rank) * run_.batch.micro;
}

void StagePasses::forward(const Op& op) {
  const Place at = place_of(op);
  Microbatch& m = at.m;
  // The stage before is on this rank too.
  if (at.layer == at.chunk.first && !at.chunk.embedding && !m.x[at.slot])
    m.x[at.slot] = std::move(m.x[at.slot - 1]);
  m.x[at.slot + 1] = stage_.layers[at.layer]->forward(pass_context(m), *m.x[at.slot], m.saved[at.layer]);
}

void StagePasses::input(const Op& op) {
  const Place at = place_of(op);
  Microbatch& m = at.m;
  // The stage behind is on this rank too.
  if (at.layer + 1 == at.chunk.last && !at.chunk.head && !m.dx[at.slot + 1])
    m.dx[at.slot + 1] = std::move(m.dx[at.slot + 2]);
  m.dx[at.slot] =
      stage_.layers[at.layer]->backward_input(pass_context(m), *m.dx[at.slot + 1], m.saved[at.layer]);
}

void StagePasses::weight(const Op& op) {
  const Place at = place_of(op);
  stage_.layers[at.layer]->backward_weight(pass_context(at.m), at.m.saved[at.layer]);
  require(at.m.saved[at.layer].empty(), "a layer kept something beyond its backward pass");
}

void StagePasses::clear(const Op& op) {
  const Place at = place_of(op);
  at.m.dx[at.slot + 1].reset();
  at.m.x[at.slot].reset();
}

// Token losses are added in double, per sequence; StepEnd adds sequences in order of global index.
void StagePasses::read_losses(const Op& op) {
  const Microbatch& m = microbatches_[size_t(op.mb)];
  device_.download(token_loss_host_.data(), *m.token_loss);
  if (!device_.has_data()) return;
  const int64_t seq = m.view.seq;
  for (int64_t s = 0; s < m.view.sequences; s++) {
    double sum = 0;
    for (int64_t t = 0; t < seq; t++) sum += token_loss_host_[size_t(s * seq + t)];
    sequence_loss_[size_t(op.mb * run_.batch.micro + s)] = sum;
  }
  sequence_loss_.back() += double(m.own_targets);
}

// [rows, hidden] of this rank's part of a microbatch, as they pass from stage to stage.
Owned StagePasses::boundary(int64_t sequences, int64_t seq) {
  const int64_t rows = sequences * seq / (run_.layout.sequence ? sharing_.tp.size : 1);
  return Owned(arena_, Bucket::activations, {rows, run_.model.hidden}, dtype_);
}

// Memory for what comes, and its receive.
void StagePasses::post_receive(const Op& op) {
  Microbatch& m = microbatches_.at(size_t(op.mb));
  const Chunk& c = chunk_of(op.stage);
  Owned& into = op.back ? m.dx[c.end_slot()] : m.x[c.slot];
  into = boundary(run_.batch.micro, run_.data.seq_len / sharing_.cp.size);
  (op.back ? m.dx_here : m.x_here)[c.number] = pipeline_->receive(way_of(op), op.peer, *into);
}

void StagePasses::receive(const Op& op) {
  Microbatch& m = microbatches_.at(size_t(op.mb));
  pipeline_->wait((op.back ? m.dx_here : m.x_here)[chunk_of(op.stage).number]);
}

void StagePasses::send(const Op& op) {
  Microbatch& m = microbatches_.at(size_t(op.mb));
  const Chunk& c = chunk_of(op.stage);
  pipeline_->send(way_of(op), op.peer, std::move(op.back ? m.dx[c.slot] : m.x[c.end_slot()]),
                  int(&op - program_->ops.data()));
}

// ---- forward only ----

HostBatch StagePasses::load(int64_t sequences, int64_t seq, const FillBatch& fill,
                            const ContextPlace& place) {
  return load_batch(microbatches_[0], sequences, seq, 0, 0, fill, place);
}

Ctx StagePasses::forward_context() {
  const Microbatch& m = microbatches_[0];
  Ctx ctx = context(m, false);
  if (divided() && groups_.ep) ctx.groups.expert_rows = expert_rows(m.view.rows());
  return ctx;
}

void StagePasses::forward_only(Ctx& ctx, const Program& program) {
  Microbatch& m = microbatches_[0];
  for (size_t i = 0; i < program.ops.size(); i++) {
    const Op& op = program.ops[i];
    const auto layer = size_t(op.layer);
    tell_layer(op);
    switch (op.kind) {
      case OpKind::post:
        m.x[0] = boundary(m.view.sequences, m.view.seq);
        m.x_here[0] = pipeline_->receive(way_of(op), op.peer, *m.x[0]);
        break;
      case OpKind::receive:
        pipeline_->wait(m.x_here[0]);
        break;
      case OpKind::send:
        pipeline_->send(way_of(op), op.peer, std::move(m.x[0]), int(i));
        break;
      case OpKind::free:
        break;  // below
      case OpKind::forward:
        m.x[1] = stage_.layers[layer]->forward(ctx, *m.x[0], m.saved[layer]);
        break;
      case OpKind::drop:
        m.saved[layer].clear();
        m.x[0] = std::move(m.x[1]);
        break;
      default:
        units_(op);
    }
  }
  m.x[0].reset();
  for (const Op& op : program.ops)
    if (op.kind == OpKind::free) pipeline_->free(op.after);
}

}  // namespace trireme
