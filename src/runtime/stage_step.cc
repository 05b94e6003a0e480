// A training step: the actions of the schedule, then loss, norm and update.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/timed.h"
#include "runtime/microbatch.h"
#include "runtime/nonfinite.h"
#include "runtime/post_validation.h"
#include "runtime/state_offload.h"
#include "spec/batch_ramp.h"

namespace trireme {
namespace {

// Among the actions of a rank's steps.
int64_t number_of(const Action& a) {
  return int64_t(a.mb + 1) << 32 | int64_t(a.stage) << 8 | int64_t(a.kind);
}

CommCounts minus(CommCounts a, const CommCounts& b) {
  for (size_t i = 0; i < kCollectives; i++)
    a[i].calls -= b[i].calls, a[i].payload -= b[i].payload, a[i].wire -= b[i].wire;
  return a;
}

}  // namespace

StageRunner::Ran StageRunner::run_actions(const FillBatch& fill) {
  const std::vector<ActionOps>& actions = program_->actions;
  const size_t settle_at = post_ ? size_t(post_->point.action) : 0;
  for (size_t i = 0; i < actions.size(); i++) {
    const ActionOps& first = actions[i];
    if (post_ && i == settle_at) {
      if (post_->under_way && !settle_step(true)) return Ran::again;
      keep_state();
    }
    enter(name_of(first.action.kind), first.action.mb);
    if (first.action.kind == Act::Step) continue;  // step() does it once loss and norm are known to be finite
    if (const size_t other = i + size_t(actions[i].interleaved); other > i) {
      for (; i < other; i++) enter(name_of(actions[i + 1].action.kind), actions[i + 1].action.mb);
      run_interleaved(first, actions[other].action, fill);
    } else {
      TraceScope traced(tracer_.get(), SpanKind::action, name_of(first.action.kind), first.action.mb);
      run_action(first, fill);
    }
    const Action& a = actions[i].action;  // the last that was run
    // Left only where more microbatches would follow: with the last one done, the step is nearly free.
    const bool done = a.kind == Act::B || a.kind == Act::W;
    if (done) first_microbatch_done(chunk_of(a.stage));
    const bool more = std::any_of(actions.begin() + std::ptrdiff_t(i) + 1, actions.end(),
                                  [](const ActionOps& next) { return has_microbatch(next.action.kind); });
    if (done && more && !pipeline_ && control_.stop && control_.stop()) return Ran::stopped;
  }
  for (const Op& op : program_->frees_ops()) run_op(op, fill);
  return Ran::done;
}

// Messages that travel during the action are issued before what a device may record and run again.
void StageRunner::run_action(const ActionOps& action, const FillBatch& fill) {
  const Act kind = action.action.kind;
  const bool passes = kind == Act::B || kind == Act::I || kind == Act::W || kind == Act::R;
  double others = 0;
  Timed t(kind == Act::F ? result_.forward_s : passes ? result_.backward_s : others);
  ctx_.reset();
  std::span<const Op> ops = program_->of(action);
  while (!ops.empty() && (ops.front().kind == OpKind::free || ops.front().kind == OpKind::post)) {
    run_op(ops.front(), fill);
    ops = ops.subspan(1);
  }
  device_.begin_action(this, number_of(action.action));
  for (const Op& op : ops) run_op(op, fill);
  device_.end_action();
}

void StageRunner::run_op(const Op& op, const FillBatch& fill) {
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
      return let_activations_go(op);
    case OpKind::left:
      return settle_away();
    case OpKind::losses:
      return read_losses(microbatches_[size_t(op.mb)], op.mb);
    case OpKind::fetch:
      return fetch(op);
    case OpKind::clear:
      return clear(op);
    case OpKind::unload:
      return microbatches_[size_t(op.mb)].release_batch();
    case OpKind::post:
      return post_receive(op);
    case OpKind::receive:
      return receive(op);
    case OpKind::send:
      return send(op, int(&op - program_->ops.data()));
    case OpKind::free:
      return pipeline_->free(op.after);
    default:
      if (op.kind == OpKind::arrive) tell_layer(op);
      return run_unit_op(*sync_, op, params_);
  }
}

void StageRunner::trace(SpanRecorder* spans, CommTracer* collectives) {
  tracer_ = spans ? std::make_unique<OpTracer>(*spans, arena_->ledger(), layer_, collectives) : nullptr;
  device_.kernels().observe(tracer_.get());
}

// Sums of sequences, added in order of global index whatever the layout: equal weights give the same number.
// (Where ranks have parts of a sequence, their sums of it are added first, in rank order.)
double StageRunner::global_loss(int64_t targets) {
  sequence_loss_.back() = double(targets_seen_);
  std::span<const double> all = sequence_loss_;
  if (comms_) {
    Timed t(result_.comm_s);
    gather_bytes(comms_->control(), std::as_bytes(std::span(sequence_loss_)),
                 std::as_writable_bytes(std::span(gathered_loss_)));
    all = gathered_loss_;
  }
  return loss_of(all, step_, targets);
}

// all: of every rank, in order, as one rank's sequence_loss_ is.
double StageRunner::loss_of(std::span<const double> all, int64_t step, int64_t targets) {
  if (!device_.has_data()) return 0;
  // A small batch (batch.ramp) uses a part of sequence_loss_.
  const auto batch = size_t(global_at(run_.batch, step));
  const size_t room = sequence_loss_.size() - 1, micro = size_t(run_.batch.micro);
  const size_t sequences = batch / size_t(sharing_.dp);
  int64_t seen = 0;
  global_loss_.assign(batch, 0.0);
  for (size_t r = 0; r * (room + 1) < all.size(); r++) {
    std::span<const double> mine = all.subspan(r * (room + 1), room + 1);
    if (comms_ && comms_->mesh().coord(int(r), Axis::tp) > 0) continue;  // as the first one says
    if (comms_ && !sharing_.has_losses(comms_->mesh().coord(int(r), Axis::pp))) continue;
    size_t replica = comms_ ? size_t(comms_->mesh().coord(int(r), Axis::dp)) : 0;
    for (size_t i = 0; i < sequences; i++)
      global_loss_[(i / micro * size_t(sharing_.dp) + replica) * micro + i % micro] += mine[i];
    seen += int64_t(mine.back());
  }
  if (seen != targets)
    run_failed("step {}: the batch has {} target tokens where {} were announced", step, seen, targets);
  double loss = 0;
  for (double s : global_loss_) loss += s;
  return loss / double(std::max<int64_t>(1, targets));
}

// The gradients of what the first and the last stage share, then of copies of stages. Each rank has its own
// part of the sum over replicas, and all hold the whole sum afterwards.
void StageRunner::add_shared() {
  Timed t(result_.comm_s);
  for (const Unit& u : params_.units) {
    if (u.frozen || u.numel == 0) continue;
    if (sharing_.tied && u.shared)
      sharing_.tied->all_reduce({.buf = flat_.own(flat_.grads, params_, u)}, compute_);
    if (sharing_.copies) sharing_.copies->all_reduce({.buf = flat_.own(flat_.grads, params_, u)}, compute_);
  }
}

// Load, drops and balancing losses of every router, over all ranks.
void StageRunner::count_routing() {
  if (!run_.model.moe()) return;
  routed_ = routing_.totals(run_.model.experts);
  if (comms_) {
    Timed t(result_.comm_s);
    sum_over_ranks(comms_->control(), routed_);
  }
  add_routing(result_, step_);
  if (!device_.has_data()) routed_.clear();
}

void StageRunner::add_routing(StepResult& result, int64_t step) const {
  if (!device_.has_data()) return;
  for (size_t l = 0; l < routed_.size(); l++)
    if (routed_[l].sent != routed_[l].computed)
      run_failed("step {}, blocks.{}.moe: {} rows were sent to experts, and these computed {}", step, l,
                 routed_[l].sent, routed_[l].computed);
  for (const LayerRouting& l : routed_) result.aux_loss += l.aux_loss, result.z_loss += l.z_loss;
}

void StageRunner::start_gradients() {
  sync_->start_step();
  for (const Unit& u : params_.units) params_.mark_grads(u, false);
}

void StageRunner::begin_step(int64_t step, int64_t targets) {
  result_ = {.loss_scale = loss_scale_.scale()};
  step_ = step, targets_ = targets, targets_seen_ = 0;
  start_gradients();
  routing_.start_step();
  if (fp8_) fp8_->start_step(device_.kernels(), compute_);
  start_noise(step);
}

StepResult StageRunner::step(std::span<const Action> actions, int64_t step, int64_t targets,
                             const FillBatch& fill, bool may_post) {
  require(mode_ == RunMode::train, "a runner made for inference cannot train");
  const Program& program = program_of(actions);
  device_.kernels().attach(arena_);
  double begin = now_s();
  if (tracer_) tracer_->set_step(step);
  if (pulse_) pulse_->step(step);
  TraceScope traced(tracer_.get(), SpanKind::step, "step");
  const CommCounts before = comms_ ? comms_->counts() : CommCounts{};
  if (post_) post_->may_post = may_post;
  Ran ran;
  do {
    program_ = &program;  // a step that was taken back has left its own
    begin_step(step, targets);
    ran = run_actions(fill);
  } while (ran == Ran::again);
  if (ran == Ran::stopped) {
    abandon_microbatches();
    abandon(*sync_, params_);
    result_.stopped = true;
    return result_;
  }
  result_.lr = lr_.at(step_);
  if (post_ && post_->kept)
    post(fill);
  else
    finish_step(fill);
  device_.sync(compute_);
  result_.comm_s += sync_->waited_s() + optimizer_->waited_s() - optimizer_waited_s_;
  optimizer_waited_s_ = optimizer_->waited_s();
  if (pipeline_) {
    result_.comm_s += pipeline_->waited_s() - pipeline_waited_s_;
    pipeline_waited_s_ = pipeline_->waited_s();
  }
  if (comms_) result_.comm = minus(comms_->counts(), before);
  result_.tokens = targets;
  result_.seconds = now_s() - begin;
  if (result_.posted) post_->result = result_;
  return result_;
}

void StageRunner::sum_gradients() {
  for (const Op& op : program_->sums_ops()) run_unit_op(*sync_, op, params_);
}

// What is made of the gradients' sums, once they are all there: the norm and its like.
void StageRunner::with_sums(const std::function<void()>& make) {
  enter("norm");
  Timed t(result_.norm_s);
  TraceScope part(tracer_.get(), SpanKind::action, "norm");
  layer_ = "grad_norm";
  sum_gradients();
  add_shared();
  make();
}

// All ranks meet, and know how the step was before weights move.
void StageRunner::finish_step(const FillBatch& fill) {
  result_.loss = global_loss(targets_);
  count_routing();
  const NoiseScaleState noise_before = noise_scale_.state();
  with_sums([&] {
    double norm =
        grad_norm_->compute(device_, params_, flat_, comms_ ? &comms_->control() : nullptr, compute_);
    result_.grad_norm = norm / loss_scale_.scale();
    finish_noise();
  });
  const double scale = clip_scale(result_.grad_norm);
  if (post_) post_->calm = scale == 1;  // not so of NaN
  if (!device_.has_data()) return update(scale);
  const SpikeVerdict verdict = spikes_.judge(result_.loss, result_.grad_norm);
  if (!verdict.finite && skip_overflow()) return;
  if (skip_spike(verdict)) {
    noise_scale_.restore(noise_before);
    result_.noise.reset();
    return;
  }
  if (!verdict.finite) find_nonfinite(fill, result_.loss, result_.grad_norm);
  update(scale);
  spikes_.updated(result_.loss, result_.grad_norm);
}

bool StageRunner::skip_spike(const SpikeVerdict& verdict) {
  if (!verdict.skip) return false;
  spikes_.skipped();
  result_.skipped = true;
  result_.spike = verdict;
  return true;
}

// A loss that is not finite is none of the scale's doing: it enters behind the loss.
bool StageRunner::skip_overflow() {
  result_.skipped = std::isfinite(result_.loss) && loss_scale_.overflow();
  return result_.skipped;
}

// As PyTorch's clip_grad_norm_: clip / (norm + 1e-6), at most 1. NaN of one that is not finite.
double StageRunner::clip_scale(double norm) const {
  if (!std::isfinite(norm)) return std::nan("");
  const double clip = run_.optimizer.clip_norm;
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

// The learning rate counts every step, AdamW's bias correction only those that moved its moments.
void StageRunner::update(double scale) {
  enter("update");
  Timed t(result_.update_s);
  TraceScope part(tracer_.get(), SpanKind::action, "Step");
  layer_ = "optimizer";
  const UpdateInput in{.lr = result_.lr,
                       .step = step_ - loss_scale_.state().skipped - spikes_.state().skipped,
                       .grad_scale = float(scale / loss_scale_.scale())};
  for (const Op& op : program_->update_ops()) {
    if (op.kind == OpKind::update) {
      update_unit(size_t(op.unit), in);
      continue;
    }
    if (StateOffload* const outside = memory_.state_offload(); outside && op.kind == OpKind::settle)
      outside->settle();
    run_unit_op(*sync_, op, params_);
  }
  move_router_biases();
  if (fp8_) fp8_->end_step(device_, comms_ ? &comms_->control() : nullptr);
  loss_scale_.good_step();
}

// Whole, or piece by piece from the file.
void StageRunner::update_unit(size_t unit, const UpdateInput& in) {
  const Unit& u = params_.units[unit];
  StateOffload* const outside = memory_.state_offload();
  if (!outside) return optimizer_->step(device_.kernels(), params_, u, flat_, in, compute_);
  const size_t states = memory_.state_decls().size();
  while (const auto piece = outside->next(unit)) {
    const StatePiece at{.own = piece->own,
                        .state = piece->kinds.first(states),
                        .master = piece->kinds.size() > states ? &piece->kinds[states] : nullptr};
    optimizer_->step_piece(device_.kernels(), params_, u, flat_, at, in, compute_);
    outside->updated();
  }
}

// Balance without a loss (Wang et al. 2024, 2408.15664, algorithm 1; DeepSeek-V3, 2412.19437, section 2.1.2):
// b_e
// += rate * sign(mean load - load of e), by the choices of the whole global batch. A function of integers
// that all ranks have, so biases are equal on all of them.
void StageRunner::move_router_biases() {
  if (run_.moe.bias_rate == 0) return;
  std::vector<float> bias(size_t(run_.model.experts));
  for (size_t l = 0; l < routed_.size(); l++) {
    const Param* p = params_.find(fmt::format("blocks.{}.moe.router.bias", l));
    if (!p) continue;
    const Tensor b = p->weight.view({p->numel()});
    device_.download(bias.data(), b);
    const LayerRouting& r = routed_[l];
    const int64_t all = r.choices(), experts = int64_t(bias.size());
    for (size_t e = 0; e < bias.size(); e++) {
      const int64_t missing = all - r.load[e] * experts;  // of the mean, times the experts
      bias[e] += float(run_.moe.bias_rate) * float((missing > 0) - (missing < 0));
    }
    device_.upload(b, bias.data());
  }
}

namespace {
// What an f16 run's user needs beside step, layer and op.
std::string why_not_skipped(const LossScale& scale, double loss) {
  if (!std::isfinite(loss))
    return "; the forward pass needs more range than f16 has (65504), whatever the loss scale: give "
           "precision.compute = \"bf16\" or \"f32\"";
  if (scale.dynamic())
    return fmt::format("; the loss scale is {}, its least (precision.min_scale)", scale.scale());
  return fmt::format("; precision.loss_scale is fixed at {}: give \"dynamic\", or a smaller one",
                     scale.scale());
}
}  // namespace

// Runs the step's forward and backward passes once more (data and randomness are pure functions, and the
// weights have not moved) with every op's outputs checked.
void StageRunner::find_nonfinite(const FillBatch& fill, double loss, double norm) {
  abandon_microbatches();
  start_gradients();
  sync_->measure(nullptr);
  measuring_ = false;
  const char* hint =
      step_ > 1 ? " (where steps before were fine, a smaller optimizer.lr or a longer warmup may be)" : "";
  NonfiniteFinder finder(device_, nonfinite_count_, {fmt::format("step {}", step_), hint}, layer_);
  OpObserver* before = device_.kernels().observe(&finder);
  try {
    run_actions(fill);
  } catch (const Error& e) {
    if (!loss_scale_.active()) throw;
    throw Error(e.what() + why_not_skipped(loss_scale_, loss), e.fault);
  }
  device_.kernels().observe(before);
  sum_gradients();
  if (comms_) agree_max(comms_->control(), 0);  // a rank that found it is told of first
  run_failed(
      "step {}: loss {} and gradient norm {} are not finite, yet no op's output shows it when run again",
      step_, loss, norm);
}

}  // namespace trireme
