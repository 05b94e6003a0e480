#include "runtime/posted_step.h"

#include <cmath>

#include "base/timed.h"

namespace trireme {

PostedStep::PostedStep(const StageParts& parts, StepEnd& end, SettlePoint point, bool always,
                       std::function<void()> weights_from_master)
    : StageParts(parts),
      end_(end),
      weights_from_master_(std::move(weights_from_master)),
      settlement_(comms_->factory(), device_),
      keeping_(device_.stream("keep")),
      point_(std::move(point)),
      always_(always) {
  const FlatState& flat = memory_.flat();
  for (size_t i = 0; i < 1 + flat.state.size(); i++)
    saved_.emplace_back(memory_.arena(), Bucket::optimizer, Shape{memory_.params().trained_part},
                        i == 0 ? DType::f32 : flat.state[i - 1].dtype);
}

PostedStep::~PostedStep() {
  try {
    device_.sync(keeping_);
  } catch (const std::exception&) {
    // The error that ended the run has a handler already.
  }
}

int64_t PostedStep::rollback_bytes() const {
  int64_t bytes = 0;
  for (const Owned& t : saved_) bytes += t->bytes();
  return bytes;
}

void PostedStep::tell(std::span<const std::byte> mine) {
  require(under_way_, "there is no step to say something of");
  settlement_.tell(mine);
}

// Own parts of master copies and state: with what is kept of them.
template <class Each>
void PostedStep::each_saved(const Each& each) {
  for (const Unit& u : memory_.params().units) {
    if (u.numel == 0 || u.frozen) continue;
    for (size_t i = 0; i < saved_.size(); i++) {
      const Tensor own = memory_.flat().own(i == 0 ? memory_.flat().master : memory_.flat().state[i - 1],
                                            memory_.params(), u);
      each(own, saved_[i]->narrow(0, u.part_offset, own.numel()));
    }
  }
}

void PostedStep::keep_state() {
  kept_ = may_post_ && (always_ || calm_);
  if (!kept_) return;
  device_.wait(keeping_, device_.record(compute_));
  each_saved([&](const Tensor& state, const Tensor& saved) { device_.copy(saved, state, keeping_); });
}

StepResult PostedStep::finish(const StepInput& in) {
  if (kept_) return post(in);
  const StepResult r = end_.finish(in);
  calm_ = end_.clip_scale(r.grad_norm) == 1;  // not so of NaN
  return r;
}

// Updates once the gradients are summed, before loss and norm are known.
StepResult PostedStep::post(const StepInput& in) {
  StepResult r = end_.begun(in);
  end_.with_sums(in, r, [&] { settlement_.post(end_.numbers(in), end_.squares()); });
  watch_.layer = "optimizer";
  device_.wait(compute_, device_.record(keeping_));
  kept_ = false;
  scale_ = end_.loss_scale().state();
  fill_ = *in.fill;
  input_ = in;
  input_.fill = &fill_;
  under_way_ = true;
  r.posted = true;
  end_.update(in, r, 1);
  return r;
}

void PostedStep::read_settlement() {
  {
    Timed t(result_.comm_s);
    TraceScope traced(watch_.tracer.get(), SpanKind::wait, "settle");
    settlement_.wait();
  }
  if (!device_.has_data()) return;
  std::vector<std::span<const double>> of_ranks;
  for (int rank = 0; rank < settlement_.ranks(); rank++) of_ranks.push_back(settlement_.numbers(rank));
  end_.read_numbers(input_, result_, of_ranks);
  result_.grad_norm = std::sqrt(settlement_.sum()) / scale_.scale;
}

bool PostedStep::settle(const std::function<void()>& drop) {
  if (!under_way_) return true;
  under_way_ = false;
  read_settlement();
  if (device_.has_data()) {
    const SpikeVerdict verdict = end_.spikes().judge(result_.loss, result_.grad_norm);
    calm_ = verdict.finite && !verdict.skip && end_.clip_scale(result_.grad_norm) == 1;
    if (calm_) end_.spikes().updated(result_.loss, result_.grad_norm);
  } else {
    calm_ = true;
  }
  if (!calm_) {
    if (drop) drop();
    take_back();
  }
  if (settled_) settled_(result_);
  return calm_;
}

// The gradients are still those of the step: nothing is added to them before the settle point.
void PostedStep::take_back() {
  taken_back_++;
  watch_.layer = "optimizer";
  each_saved([&](const Tensor& state, const Tensor& saved) { device_.copy(state, saved, compute_); });
  end_.loss_scale().restore(scale_);
  const SpikeVerdict verdict = end_.spikes().judge(result_.loss, result_.grad_norm);
  if (!verdict.finite || verdict.skip) weights_from_master_();  // there is no update, which writes them
  end_.conclude(input_, result_);
  device_.sync(compute_);
}

}  // namespace trireme
