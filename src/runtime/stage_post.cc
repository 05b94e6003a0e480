// Optimizer post-validation (Qi et al. 2024, arXiv 2401.10241, section 4): a rank updates its weights as if
// no clipping were needed and every gradient finite, and goes on with the next step. What all ranks say of
// the step is gathered meanwhile; before its first backward pass each looks whether the step was right, and
// where it was not all of them drop what they have begun, take the step back and make it again.
//
// The paper passes partial norms from stage to stage and rolls AdamW back by its inverse. Here every rank
// gathers the same numbers as a step without post-validation has, and the state before the step is kept: so
// results are the same to the bit.
#include <cmath>

#include "base/timed.h"
#include "runtime/microbatch.h"
#include "runtime/post_validation.h"
#include "spec/run_schedule.h"

namespace trireme {

void StageRunner::prepare_post_validation() {
  const std::string& how = run_.optimizer.post_validation;
  if (mode_ != RunMode::train || !pipeline_ || how == "off") return;
  const std::vector<SettlePoint> points = settle_points(schedules_.back());
  post_ = std::make_unique<PostValidation>(comms_->factory(), device_, points.at(size_t(sharing_.pp.rank)),
                                           how == "always");
  for (size_t i = 0; i < 1 + flat_.state.size(); i++)
    post_->saved.emplace_back(*arena_, Bucket::optimizer, Shape{params_.trained_part},
                              i == 0 ? DType::f32 : flat_.state[i - 1].dtype);
}

int64_t StageRunner::rollback_bytes() const {
  int64_t bytes = 0;
  if (post_)
    for (const Owned& t : post_->saved) bytes += t->bytes();
  return bytes;
}

int64_t StageRunner::taken_back() const {
  return post_ ? post_->taken_back : 0;
}

void StageRunner::on_settled(std::function<void(const StepResult&)> f) {
  if (post_) post_->settled = std::move(f);
}

void StageRunner::tell(std::span<const std::byte> mine) {
  require(post_ && post_->under_way, "there is no step to say something of");
  post_->settlement.tell(mine);
}
std::span<const std::byte> StageRunner::told() {
  return post_->settlement.told();
}

// Own parts of master copies and state: with what is kept of them.
template <class Each>
void StageRunner::each_saved(const Each& each) {
  for (const Unit& u : params_.units) {
    if (u.numel == 0 || u.frozen) continue;
    for (size_t i = 0; i < post_->saved.size(); i++) {
      const Tensor own = flat_.own(i == 0 ? flat_.master : flat_.state[i - 1], params_, u);
      each(own, post_->saved[i]->narrow(0, u.part_offset, own.numel()));
    }
  }
}

// At the settle point: from there to its update the step leaves the state alone.
void StageRunner::keep_state() {
  PostValidation& p = *post_;
  p.kept = p.may_post && (p.always || p.calm);
  if (!p.kept) return;
  device_.wait(p.keeping, device_.record(compute_));
  each_saved([&](const Tensor& state, const Tensor& saved) { device_.copy(saved, state, p.keeping); });
}

// In place of update(), once the gradients are summed.
void StageRunner::post(const FillBatch& fill) {
  PostValidation& p = *post_;
  with_sums([&] {
    std::vector<double> numbers = sequence_loss_;
    numbers.back() = double(targets_seen_);
    if (run_.model.moe()) {
      routed_ = routing_.totals(run_.model.experts);
      const std::vector<double> routing = numbers_of(routed_);
      numbers.insert(numbers.end(), routing.begin(), routing.end());
    }
    p.settlement.post(numbers, grad_norm_->squares(device_, params_, flat_, compute_));
  });
  layer_ = "optimizer";
  device_.wait(compute_, device_.record(p.keeping));
  p.kept = false;
  p.scale = loss_scale_.state();
  p.step = step_;
  p.targets = targets_;
  p.program = program_;
  p.fill = fill;
  p.under_way = true;
  result_.posted = true;
  update(1);
}

// The same numbers in the same order as a step that all ranks meet for.
void StageRunner::read_settlement() {
  PostValidation& p = *post_;
  {
    Timed t(result_.comm_s);
    TraceScope traced(tracer_.get(), SpanKind::wait, "settle");
    p.settlement.wait();
  }
  if (!device_.has_data()) return;
  StepResult& r = p.result;
  const size_t stride = sequence_loss_.size();
  std::vector<double> losses, routing(run_.model.moe() ? numbers_of(routed_).size() : 0);
  for (int rank = 0; rank < p.settlement.ranks(); rank++) {
    const std::span<const double> all = p.settlement.numbers(rank);
    losses.insert(losses.end(), all.begin(), all.begin() + std::ptrdiff_t(stride));
    for (size_t i = 0; i < routing.size(); i++)
      routing[i] = rank == 0 ? all[stride + i] : routing[i] + all[stride + i];
  }
  r.loss = loss_of(losses, p.step, p.targets);
  put_numbers(routed_, routing);
  add_routing(r, p.step);
  r.grad_norm = std::sqrt(p.settlement.sum()) / p.scale.scale;
}

// begun: the next step's actions up to the settle point are done. False: they are dropped, and the step is
// to be begun again.
bool StageRunner::settle_step(bool begun) {
  PostValidation& p = *post_;
  p.under_way = false;
  read_settlement();
  const SpikeVerdict verdict = spikes_.judge(p.result.loss, p.result.grad_norm);
  p.calm = !device_.has_data() || (verdict.finite && !verdict.skip && clip_scale(p.result.grad_norm) == 1);
  if (!p.calm) {
    if (begun) drop_begun();
    take_back(verdict);
  } else if (device_.has_data()) {
    spikes_.updated(p.result.loss, p.result.grad_norm);
  }
  if (p.settled) p.settled(p.result);
  return p.calm;
}

void StageRunner::settle() {
  if (post_ && post_->under_way) settle_step(false);
}

// Messages that other ranks sent before their settle points, and which this one has not come to, are read
// and forgotten; every rank has sent as much, whatever the others do.
void StageRunner::drop_begun() {
  abandon_microbatches();
  abandon(*sync_, params_);
  for (const Action& a : post_->point.unread) {
    const Owned into = boundary(run_.batch.micro, run_.data.seq_len / sharing_.cp.size);
    pipeline_->wait(pipeline_->receive(PipelineComm::forward, pipeline_->rank_of(a.stage - 1, a.mb), *into));
  }
  pipeline_->free_all();
}

// The gradients are still those of the step: nothing is added to them before the settle point.
void StageRunner::take_back(const SpikeVerdict& verdict) {
  PostValidation& p = *post_;
  p.taken_back++;
  layer_ = "optimizer";
  each_saved([&](const Tensor& state, const Tensor& saved) { device_.copy(state, saved, compute_); });
  loss_scale_.restore(p.scale);
  result_ = p.result;
  step_ = p.step;
  targets_ = p.targets;
  program_ = p.program;
  if (verdict.finite && !verdict.skip) {
    update(clip_scale(result_.grad_norm));
    spikes_.updated(result_.loss, result_.grad_norm);
  } else {
    weights_from_master();
    const bool skipped = (!verdict.finite && skip_overflow()) || skip_spike(verdict);
    if (!skipped) find_nonfinite(p.fill, result_.loss, result_.grad_norm);
  }
  device_.sync(compute_);
  p.result = result_;
}

}  // namespace trireme
