#include "runtime/step_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/timed.h"
#include "optim/run_lr.h"
#include "runtime/make_optimizer.h"
#include "runtime/nonfinite.h"
#include "runtime/state_offload.h"
#include "spec/batch_ramp.h"

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

std::unique_ptr<Optimizer> optimizer_with_memory(const StageParts& p) {
  auto optimizer = make_optimizer(p.run_, p.memory_.params(), p.sharing_, p.device_, p.memory_.arena());
  p.memory_.hold_flat(optimizer->state());
  return optimizer;
}

}  // namespace

StepEnd::StepEnd(const StageParts& parts, GradSync& sync)
    : StageParts(parts),
      sync_(sync),
      params_(memory_.params()),
      flat_(memory_.flat()),
      lr_(lr_schedule_of(run_)),
      loss_scale_(loss_scale_of(run_.precision)),
      spikes_({.active = run_.train.spikes != "off",
               .z = run_.train.spike_z,
               .window = run_.train.spike_window,
               .limit = run_.train.spike_limit}),
      optimizer_(optimizer_with_memory(parts)),
      grad_norm_(params_, flat_, memory_.arena()),
      noise_(parts, sync) {
  global_loss_.resize(size_t(run_.batch.global));
}

void StepEnd::start_step(int64_t step) {
  start_gradients();
  optimizer_waited_s_ = optimizer_->waited_s();
  noise_.start_step(step);
}

double StepEnd::waited_s() const {
  return sync_.waited_s() + optimizer_->waited_s() - optimizer_waited_s_;
}

void StepEnd::start_gradients() {
  sync_.start_step();
  for (const Unit& u : params_.units) params_.mark_grads(u, false);
}

void StepEnd::sum_gradients(const StepInput& in) {
  for (const Op& op : in.program->sums_ops()) {
    if (watch_.control.op) watch_.control.op(op);
    run_unit_op(sync_, op, params_);
  }
}

// `make` reads the sums: the norm, say.
void StepEnd::with_sums(const StepInput& in, StepResult& r, const std::function<void()>& make) {
  watch_.enter("norm");
  Timed t(r.norm_s);
  TraceScope part(watch_.tracer.get(), SpanKind::action, "norm");
  watch_.layer = "grad_norm";
  sum_gradients(in);
  add_shared(r);
  make();
}

std::span<const double> StepEnd::squares() {
  return grad_norm_.squares(device_, params_, flat_, compute_);
}

StepResult StepEnd::begun(const StepInput& in) const {
  return {.lr = lr_.at(in.step), .tokens = in.targets, .loss_scale = loss_scale_.scale()};
}

StepResult StepEnd::finish(const StepInput& in) {
  if (watch_.control.op) watch_.control.op(in.program->ops[size_t(in.program->norm)]);
  StepResult r = begun(in);
  r.loss = global_loss(in, r);
  count_routing(in, r);
  const NoiseScaleState noise_before = noise_.scale().state();
  with_sums(in, r, [&] {
    const double norm =
        grad_norm_.compute(device_, params_, flat_, comms_ ? &comms_->control() : nullptr, compute_);
    r.grad_norm = norm / loss_scale_.scale();
    const StepNoise::Samples noise = noise_.finish(r.grad_norm, loss_scale_.scale());
    r.noise = noise.rest;
    r.noise_experts = noise.experts;
  });
  conclude(in, r);
  if (r.spike) {
    noise_.scale().restore(noise_before);
    r.noise.reset();
  }
  return r;
}

// A loss that is not finite has another cause than the loss scale, which enters behind the loss.
void StepEnd::conclude(const StepInput& in, StepResult& r) {
  const double scale = clip_scale(r.grad_norm);
  if (!device_.has_data()) return update(in, r, scale);
  const SpikeVerdict verdict = spikes_.judge(r.loss, r.grad_norm);
  r.skipped = !verdict.finite && std::isfinite(r.loss) && loss_scale_.overflow();
  if (r.skipped) return;
  if (verdict.skip) {
    spikes_.skipped();
    r.skipped = true;
    r.spike = verdict;
    return;
  }
  if (!verdict.finite) find_nonfinite(in, r);
  update(in, r, scale);
  spikes_.updated(r.loss, r.grad_norm);
}

std::vector<double> StepEnd::numbers(const StepInput& in) {
  std::vector<double> all(in.losses.begin(), in.losses.end());
  if (!run_.model.moe()) return all;
  routed_ = in.routing->totals(run_.model.experts);
  const std::vector<double> routing = numbers_of(routed_);
  all.insert(all.end(), routing.begin(), routing.end());
  return all;
}

// The same numbers in the same order as a step that all ranks meet for.
void StepEnd::read_numbers(const StepInput& in, StepResult& r,
                           std::span<const std::span<const double>> of_ranks) {
  const size_t stride = in.losses.size();
  std::vector<double> losses, routing(run_.model.moe() ? numbers_of(routed_).size() : 0);
  for (const std::span<const double>& all : of_ranks) {
    losses.insert(losses.end(), all.begin(), all.begin() + std::ptrdiff_t(stride));
    for (size_t i = 0; i < routing.size(); i++)
      routing[i] = &all == &of_ranks[0] ? all[stride + i] : routing[i] + all[stride + i];
  }
  r.loss = loss_of(in, losses);
  put_numbers(routed_, routing);
  add_routing(in, r);
}

// Sums of sequences, added in order of global index whatever the layout: equal weights give the same number.
// (Where ranks have parts of a sequence, their sums of it are added first, in rank order.)
double StepEnd::global_loss(const StepInput& in, StepResult& r) {
  if (!comms_) return loss_of(in, in.losses);
  Timed t(r.comm_s);
  gathered_loss_.resize(in.losses.size() * size_t(comms_->world()));
  gather_bytes(comms_->control(), std::as_bytes(in.losses),
               std::as_writable_bytes(std::span(gathered_loss_)));
  return loss_of(in, gathered_loss_);
}

// all: StepInput::losses of every rank, in order.
double StepEnd::loss_of(const StepInput& in, std::span<const double> all) {
  if (!device_.has_data()) return 0;
  // A small batch (batch.ramp) uses a part of the losses.
  const auto batch = size_t(global_at(run_.batch, in.step));
  const size_t room = in.losses.size() - 1, micro = size_t(run_.batch.micro);
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
  if (seen != in.targets)
    run_failed("step {}: the batch has {} target tokens where {} were announced", in.step, seen, in.targets);
  double loss = 0;
  for (double s : global_loss_) loss += s;
  return loss / double(std::max<int64_t>(1, in.targets));
}

// The gradients of what the first and the last stage share, then of copies of stages. Each rank has its own
// part of the sum over replicas, and all hold the whole sum afterwards.
void StepEnd::add_shared(StepResult& r) {
  Timed t(r.comm_s);
  for (const Unit& u : params_.units) {
    if (u.frozen || u.numel == 0) continue;
    if (sharing_.tied && u.shared)
      sharing_.tied->all_reduce({.buf = flat_.own(flat_.grads, params_, u)}, compute_);
    if (sharing_.copies) sharing_.copies->all_reduce({.buf = flat_.own(flat_.grads, params_, u)}, compute_);
  }
}

// Load, drops and balancing losses of every router, over all ranks.
void StepEnd::count_routing(const StepInput& in, StepResult& r) {
  if (!run_.model.moe()) return;
  routed_ = in.routing->totals(run_.model.experts);
  if (comms_) {
    Timed t(r.comm_s);
    sum_over_ranks(comms_->control(), routed_);
  }
  add_routing(in, r);
  if (!device_.has_data()) routed_.clear();
}

void StepEnd::add_routing(const StepInput& in, StepResult& result) const {
  if (!device_.has_data()) return;
  for (size_t l = 0; l < routed_.size(); l++)
    if (routed_[l].sent != routed_[l].computed)
      run_failed("step {}, blocks.{}.moe: {} rows were sent to experts, and these computed {}", in.step, l,
                 routed_[l].sent, routed_[l].computed);
  for (const LayerRouting& l : routed_) result.aux_loss += l.aux_loss, result.z_loss += l.z_loss;
}

// As PyTorch's clip_grad_norm_: clip / (norm + 1e-6), at most 1. NaN of one that is not finite.
double StepEnd::clip_scale(double norm) const {
  if (!std::isfinite(norm)) return std::nan("");
  const double clip = run_.optimizer.clip_norm;
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

// The learning rate counts every step, AdamW's bias correction only those that moved its moments.
void StepEnd::update(const StepInput& in, StepResult& r, double scale) {
  watch_.enter("update");
  Timed t(r.update_s);
  TraceScope part(watch_.tracer.get(), SpanKind::action, "Step");
  watch_.layer = "optimizer";
  const UpdateInput how{.lr = r.lr,
                        .step = in.step - loss_scale_.state().skipped - spikes_.state().skipped,
                        .grad_scale = float(scale / loss_scale_.scale())};
  for (const Op& op : in.program->update_ops()) {
    if (watch_.control.op) watch_.control.op(op);
    if (op.kind == OpKind::update) {
      update_unit(size_t(op.unit), how);
      continue;
    }
    if (StateOffload* const outside = memory_.state_offload(); outside && op.kind == OpKind::settle)
      outside->settle();
    run_unit_op(sync_, op, params_);
  }
  move_router_biases();
  if (in.fp8) in.fp8->end_step(device_, comms_ ? &comms_->control() : nullptr);
  loss_scale_.good_step();
}

// Whole, or piece by piece from the file.
void StepEnd::update_unit(size_t unit, const UpdateInput& in) {
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
void StepEnd::move_router_biases() {
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
      const int64_t missing = all - r.load[e] * experts;  // to the mean, times the experts
      bias[e] += float(run_.moe.bias_rate) * float((missing > 0) - (missing < 0));
    }
    device_.upload(b, bias.data());
  }
}

namespace {
// Advice for an f16 run, after step, layer and op.
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

// The weights have not moved.
void StepEnd::find_nonfinite(const StepInput& in, const StepResult& r) {
  start_gradients();
  noise_.stop();
  const char* hint =
      in.step > 1 ? " (where steps before were fine, a smaller optimizer.lr or a longer warmup may be)" : "";
  NonfiniteFinder finder(device_, memory_.nonfinite_count(), {fmt::format("step {}", in.step), hint},
                         watch_.layer);
  OpObserver* before = device_.kernels().observe(&finder);
  try {
    repeat_(in);
  } catch (const Error& e) {
    if (!loss_scale_.active()) throw;
    throw Error(e.what() + why_not_skipped(loss_scale_, r.loss), e.fault);
  }
  device_.kernels().observe(before);
  sum_gradients(in);
  if (comms_) agree_max(comms_->control(), 0);  // a rank that found it reports first
  run_failed(
      "step {}: loss {} and gradient norm {} are not finite, yet no op's output shows it when run again",
      in.step, r.loss, r.grad_norm);
}

}  // namespace trireme
