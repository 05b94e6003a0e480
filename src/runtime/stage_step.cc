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

// Is an action of this kind issued together with the i-th one?
bool together(std::span<const Action> actions, size_t i, Act kind) {
  const uint16_t id = actions[i].overlap;
  if (id == 0) return false;
  size_t first = i;
  while (first > 0 && actions[first - 1].overlap == id) first--;
  for (size_t j = first; j < actions.size() && actions[j].overlap == id; j++)
    if (actions[j].kind == kind) return true;
  return false;
}

// An R beside its backward is done there, layer by layer.
bool beside_backward(std::span<const Action> actions, size_t i) {
  const Action& r = actions[i];
  for (size_t j = i + 1; r.overlap != 0 && j < actions.size() && actions[j].overlap == r.overlap; j++)
    if ((actions[j].kind == Act::B || actions[j].kind == Act::I) && actions[j].stage == r.stage &&
        actions[j].mb == r.mb)
      return true;
  return false;
}

// Does a backward of the same stage come next, of all that uses weights?
bool turns_back(std::span<const Action> actions, size_t i) {
  const int stage = actions[i].stage;
  while (++i < actions.size()) {
    const Act kind = actions[i].kind;
    if (kind == Act::B || kind == Act::I) return actions[i].stage == stage;
    if (kind == Act::F || (kind == Act::R && !beside_backward(actions, i))) return false;
  }
  return false;
}

bool computes(Act a) {
  return a == Act::F || a == Act::B || a == Act::I || a == Act::W;
}

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

// Every use of weights in the step, so that each gather can be on its way before it is needed.
void StageRunner::add_passes(std::span<const Action> actions) {
  walk_.clear();
  for (size_t i = 0; sharing_.zero == 3 && i < actions.size(); i++) {
    const Act kind = actions[i].kind;
    const bool alone = kind == Act::R && !beside_backward(actions, i);
    if (kind == Act::W && sharing_.layers.ep)
      add_experts_pass(chunk_of(actions[i].stage), together(actions, i, Act::Reshard));
    if (kind != Act::F && kind != Act::B && kind != Act::I && !alone) continue;
    require(together(actions, i, Act::Unshard), "ZeRO 3 needs an Unshard with every use of weights");
    const bool keep_last = !run_.layout.reshard_last && kind == Act::F && turns_back(actions, i);
    add_pass(chunk_of(actions[i].stage), kind == Act::F || alone, together(actions, i, Act::Reshard), alone,
             keep_last);
  }
  sync_->follow(walk_);
}

StageRunner::Ran StageRunner::run_actions(std::span<const Action> actions, const FillBatch& fill) {
  add_passes(actions);
  weights_left_.assign(chunks_.size(), 0);
  for (const Action& a : actions)
    if (a.kind == Act::B || a.kind == Act::W) weights_left_[chunk_of(a.stage).number]++;
  const size_t settle_at = post_ ? size_t(post_->point.action) : 0;
  for (size_t i = 0; i < actions.size(); i++) {
    const Action& a = actions[i];
    if (post_ && i == settle_at) {
      if (post_->under_way && !settle_step(true)) return Ran::again;
      keep_state();
    }
    enter(name_of(a.kind), a.mb);
    if (a.kind == Act::Step) continue;  // step() does it once loss and norm are known to be finite
    TraceScope traced(tracer_.get(), SpanKind::action, name_of(a.kind), a.mb);
    if (pipeline_) {
      pipeline_->let_go(int(i));
      // What may be dropped has no message under way beyond it.
      const size_t ahead = i < settle_at ? settle_at - i - 1 : actions.size();
      const std::span<const Action> next = actions.subspan(i + 1);
      if (computes(a.kind) || a.kind == Act::R) post_receives(next.first(std::min(ahead, next.size())));
    }
    const Chunk& c = chunk_of(a.stage);
    device_.begin_action(this, number_of(a));
    Microbatch* m = a.mb >= 0 ? &microbatches_.at(size_t(a.mb)) : nullptr;
    const bool reduce = together(actions, i, Act::ReduceGrad);
    switch (a.kind) {
      case Act::F:
        forward(*m, c, a.mb, fill);
        break;
      case Act::B:
        backward(*m, c, true, true, reduce);
        break;
      case Act::I:
        backward(*m, c, true, false, false);
        break;
      case Act::W:
        backward(*m, c, false, true, reduce);
        break;
      case Act::R:
        if (!beside_backward(actions, i)) recompute_stage(*m, c);
        break;
      case Act::ReduceGrad:
        reduce_stage(c, a.overlap != 0);
        break;
      case Act::Unshard:
        sync_->gather_ahead();
        break;
      case Act::Reshard:  // done layer by layer in the pass it is issued with
        break;
      case Act::RecvF:
      case Act::RecvB:
        receive(a);
        break;
      case Act::SendF:
      case Act::SendB:
        send(a, int(i));
        break;
      case Act::Step:
        break;
    }
    device_.end_action();
    // Left only where more microbatches would follow: with the last one done, the step is nearly free.
    bool done = a.kind == Act::B || a.kind == Act::W;
    if (done) first_microbatch_done(c);
    bool more = std::any_of(actions.begin() + std::ptrdiff_t(i) + 1, actions.end(),
                            [](const Action& next) { return has_microbatch(next.kind); });
    if (done && more && !pipeline_ && control_.stop && control_.stop()) return Ran::stopped;
  }
  if (pipeline_) pipeline_->let_all_go();
  return Ran::done;
}

// Beside a backward the layers' gradients were reduced as they came; alone, all of them here.
void StageRunner::reduce_stage(const Chunk& c, bool with_backward) {
  if (with_backward) return;
  require(sharing_.zero < 2, "ZeRO 2 and 3 need a ReduceGrad with every weight gradient");
  for (size_t l = c.last; l-- > c.first;) reduce_layer(l);
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

// The gradients of what the first and the last stage share: each has its own part of the sum over replicas,
// and both hold the whole sum afterwards.
void StageRunner::add_shared() {
  if (!shared_) return;
  Timed t(result_.comm_s);
  for (const Unit& u : params_.units)
    if (u.shared) shared_->all_reduce({.buf = flat_.own(flat_.grads, params_, u)}, compute_);
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

void StageRunner::begin_step(int64_t step, int64_t targets) {
  result_ = {.loss_scale = loss_scale_.scale()};
  step_ = step, targets_ = targets, targets_seen_ = 0;
  sync_->start_step();
  routing_.start_step();
  if (fp8_) fp8_->start_step(device_.kernels(), compute_);
  start_noise(step);
}

StepResult StageRunner::step(std::span<const Action> actions, int64_t step, int64_t targets,
                             const FillBatch& fill, bool may_post) {
  require(mode_ == RunMode::train, "a runner made for inference cannot train");
  require(!pipeline_ || pipeline_->follow(actions), "the actions of another schedule than the layout's");
  device_.kernels().attach(arena_.get());
  double begin = now_s();
  if (tracer_) tracer_->set_step(step);
  if (pulse_) pulse_->step(step);
  TraceScope traced(tracer_.get(), SpanKind::step, "step");
  const CommCounts before = comms_ ? comms_->counts() : CommCounts{};
  if (post_) post_->may_post = may_post;
  Ran ran;
  do {
    begin_step(step, targets);
    ran = run_actions(actions, fill);
  } while (ran == Ran::again);
  if (ran == Ran::stopped) {
    abandon_microbatches();
    sync_->abandon();
    result_.stopped = true;
    return result_;
  }
  result_.lr = lr_.at(step_);
  if (post_ && post_->kept)
    post(actions, fill);
  else
    finish_step(actions, fill);
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

// What is made of the gradients' sums, once they are all there: the norm and its like.
void StageRunner::with_sums(const std::function<void()>& make) {
  enter("norm");
  Timed t(result_.norm_s);
  TraceScope part(tracer_.get(), SpanKind::action, "norm");
  layer_ = "grad_norm";
  sync_->finish();
  add_shared();
  add_copies();
  make();
}

// All ranks meet, and know how the step was before weights move.
void StageRunner::finish_step(std::span<const Action> actions, const FillBatch& fill) {
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
  if (!verdict.finite) find_nonfinite(actions, fill, result_.loss, result_.grad_norm);
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
  for (size_t u = 0; u < params_.units.size(); u++) {
    update_unit(u, in);
    sync_->updated(u);
  }
  if (state_offload_) state_offload_->settle();
  sync_->settle();
  move_router_biases();
  if (fp8_) fp8_->end_step(device_, comms_ ? &comms_->control() : nullptr);
  loss_scale_.good_step();
}

// Whole, or piece by piece from the file.
void StageRunner::update_unit(size_t unit, const UpdateInput& in) {
  const Unit& u = params_.units[unit];
  if (!state_offload_) return optimizer_->step(device_.kernels(), params_, u, flat_, in, compute_);
  const size_t states = state_decls_.size();
  while (const auto piece = state_offload_->next(unit)) {
    const StatePiece at{.own = piece->own,
                        .state = piece->kinds.first(states),
                        .master = piece->kinds.size() > states ? &piece->kinds[states] : nullptr};
    optimizer_->step_piece(device_.kernels(), params_, u, flat_, at, in, compute_);
    state_offload_->updated();
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
void StageRunner::find_nonfinite(std::span<const Action> actions, const FillBatch& fill, double loss,
                                 double norm) {
  abandon_microbatches();
  sync_->start_step();
  sync_->measure(nullptr);
  measuring_ = false;
  const char* hint =
      step_ > 1 ? " (where steps before were fine, a smaller optimizer.lr or a longer warmup may be)" : "";
  NonfiniteFinder finder(device_, nonfinite_count_, {fmt::format("step {}", step_), hint}, layer_);
  OpObserver* before = device_.kernels().observe(&finder);
  try {
    run_actions(actions, fill);
  } catch (const Error& e) {
    if (!loss_scale_.active()) throw;
    throw Error(e.what() + why_not_skipped(loss_scale_, loss), e.fault);
  }
  device_.kernels().observe(before);
  sync_->finish();
  if (comms_) agree_max(comms_->control(), 0);  // a rank that found it is told of first
  run_failed(
      "step {}: loss {} and gradient norm {} are not finite, yet no op's output shows it when run again",
      step_, loss, norm);
}

}  // namespace trireme
