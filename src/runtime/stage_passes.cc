// The passes over a rank's layers, and what a microbatch holds between them: one function per operation of
// the rank's program (program/program.h).
#include "base/timed.h"
#include "runtime/context.h"
#include "runtime/microbatch.h"
#include "spec/batch_ramp.h"

namespace trireme {
namespace {

PipelineComm::Way way_of(const Op& op) {
  return op.back ? PipelineComm::backward : PipelineComm::forward;
}

}  // namespace

Ctx StageRunner::context(const Microbatch& m, bool backward) {
  device_.kernels().attach(arena_);  // several runners may share a device
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

// seq: of whole sequences, which every rank reads; of these it keeps what is its own at `place`.
void StageRunner::load_batch(Microbatch& m, int64_t sequences, int64_t seq, int64_t step, int64_t mb,
                             const FillBatch& fill, const ContextPlace& place) {
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

// The context of a pass over a layer; the same for all layers of an action.
Ctx& StageRunner::pass_context(const Microbatch& m) {
  const bool interleaved = turns_.mb >= 0;
  std::optional<Ctx>& ctx = interleaved && &m == &microbatches_[size_t(turns_.mb)] ? turns_.ctx : ctx_;
  if (!ctx) {
    ctx.emplace(context(m, true));
    if (interleaved) ctx->groups.other_pass = &turns_.other_pass;
  }
  return *ctx;
}
StageRunner::Place StageRunner::place_of(const Op& op) {
  const Chunk& c = chunk_of(op.stage);
  const auto layer = size_t(op.layer);
  return {microbatches_.at(size_t(op.mb)), c, layer, c.slot + layer - c.first};
}

// Every stage wants positions, and the last one targets.
void StageRunner::load(const Op& op, const FillBatch& fill) {
  Microbatch& m = microbatches_.at(size_t(op.mb));
  load_batch(m, run_.batch.micro, run_.data.seq_len, step_, op.mb, fill, sharing_.layers.cp.place());
  m.view.first_sequence = (op.mb * sharing_.dp + sharing_.dp_rank) * run_.batch.micro;
}

void StageRunner::forward(const Op& op) {
  const Place at = place_of(op);
  Microbatch& m = at.m;
  // The stage before is on this rank too.
  if (at.layer == at.chunk.first && !at.chunk.embedding && !m.x[at.slot])
    m.x[at.slot] = std::move(m.x[at.slot - 1]);
  m.x[at.slot + 1] = stage_.layers[at.layer]->forward(pass_context(m), *m.x[at.slot], m.saved[at.layer]);
}

void StageRunner::input(const Op& op) {
  const Place at = place_of(op);
  Microbatch& m = at.m;
  // The stage behind is on this rank too.
  if (at.layer + 1 == at.chunk.last && !at.chunk.head && !m.dx[at.slot + 1])
    m.dx[at.slot + 1] = std::move(m.dx[at.slot + 2]);
  m.dx[at.slot] =
      stage_.layers[at.layer]->backward_input(pass_context(m), *m.dx[at.slot + 1], m.saved[at.layer]);
}

void StageRunner::weight(const Op& op) {
  const Place at = place_of(op);
  stage_.layers[at.layer]->backward_weight(pass_context(at.m), at.m.saved[at.layer]);
  require(at.m.saved[at.layer].empty(), "a layer kept something beyond its backward pass");
}

void StageRunner::clear(const Op& op) {
  const Place at = place_of(op);
  at.m.dx[at.slot + 1].reset();
  at.m.x[at.slot].reset();
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

// [rows, hidden] of this rank's part of a microbatch, as they pass from stage to stage.
Owned StageRunner::boundary(int64_t sequences, int64_t seq) {
  const int64_t rows = sequences * seq / (run_.layout.sequence ? sharing_.tp.size : 1);
  return Owned(*arena_, Bucket::activations, {rows, run_.model.hidden}, dtype_);
}

// Memory for what comes, and its receive.
void StageRunner::post_receive(const Op& op) {
  Microbatch& m = microbatches_.at(size_t(op.mb));
  const Chunk& c = chunk_of(op.stage);
  Owned& into = op.back ? m.dx[c.end_slot()] : m.x[c.slot];
  into = boundary(run_.batch.micro, run_.data.seq_len / sharing_.cp.size);
  (op.back ? m.dx_here : m.x_here)[c.number] = pipeline_->receive(way_of(op), op.peer, *into);
}

void StageRunner::receive(const Op& op) {
  Microbatch& m = microbatches_.at(size_t(op.mb));
  pipeline_->wait((op.back ? m.dx_here : m.x_here)[chunk_of(op.stage).number]);
}

void StageRunner::send(const Op& op, int number) {
  Microbatch& m = microbatches_.at(size_t(op.mb));
  const Chunk& c = chunk_of(op.stage);
  pipeline_->send(way_of(op), op.peer, std::move(op.back ? m.dx[c.slot] : m.x[c.end_slot()]), number);
}

// Evaluation and generation: a layer's output takes the place of its input.
void StageRunner::forward_only(Microbatch& m, Ctx& ctx) {
  for (size_t i = 0; i < forward_.ops.size(); i++) {
    const Op& op = forward_.ops[i];
    const auto layer = size_t(op.layer);
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
        tell_layer(op);
        m.x[1] = stage_.layers[layer]->forward(ctx, *m.x[0], m.saved[layer]);
        break;
      case OpKind::drop:
        m.saved[layer].clear();
        m.x[0] = std::move(m.x[1]);
        break;
      default:
        tell_layer(op);
        run_unit_op(*sync_, op, params_);
    }
  }
  m.x[0].reset();
  for (const Op& op : forward_.ops)
    if (op.kind == OpKind::free) pipeline_->free(op.after);
}

}  // namespace trireme
