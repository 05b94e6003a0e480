#include "forecast/work_prices.h"

#include <cmath>

#include "cost/step_memory.h"

namespace trireme {

WorkPrices::WorkPrices(const StepCase& c, const DeviceFigures& d, const FitValues& f)
    : c_(c), d_(d), f_(f), slower_(slowness(c, d, f)) {}

int64_t WorkPrices::nanoseconds(double seconds) const {
  return std::llround(seconds * slower_ * 1e9);
}

void WorkPrices::set_policy(WorldWork& w, const LayoutSpec& keys) const {
  w.zero = c_.dp * c_.cp > 1 ? c_.zero : 0;
  w.by_layer = c_.software.by_layer(), w.cast = c_.cast;
  w.prefetch = c_.prefetch, w.reshard_last = c_.reshard_last;
  w.interleave = keys.interleave;
  w.bucket_bytes = int64_t(keys.bucket_mb * 1e6);
}

void WorkPrices::set_passes(LayerWork& w, const ActionSeconds& a) const {
  const auto pass = [&](const PassSeconds& s) -> PassTimes {
    return {nanoseconds(s.compute), nanoseconds(s.tp), nanoseconds(s.cp), nanoseconds(s.ep)};
  };
  w.forward = pass(a.forward), w.input = pass(a.input), w.weight = pass(a.weight), w.again = pass(a.again);
}
LayerWork WorkPrices::passes(bool experts) const {
  return passes(experts, layer_compute(c_, d_, f_, experts));
}
LayerWork WorkPrices::passes(bool experts, const LayerCompute& compute) const {
  LayerWork w;
  set_passes(w, layer_actions(c_, d_, f_, experts, compute));
  return w;
}
LayerWork WorkPrices::head_passes() const {
  LayerWork w;
  set_passes(w, head_actions(c_, d_, f_));
  return w;
}

void WorkPrices::set_states(LayerWork& w, const HeldParameters& held, double layers) const {
  const StateSeconds s = state_seconds(c_, d_, f_, held, layers);
  w.reduce = nanoseconds(s.reduce), w.gather = nanoseconds(s.gather);
  if (held.experts > 0)
    w.reduce_experts = nanoseconds(s.reduce_experts), w.gather_experts = nanoseconds(s.gather_experts);
  w.wire = int64_t(held.dense * c_.grad_bytes);
  w.wire_experts = int64_t(held.experts * c_.grad_bytes);
  w.state = int64_t(state_bytes(c_, held.dense, held.experts));
  if (c_.software.by_layer()) w.update = nanoseconds(update_seconds(c_, d_, f_, held));
}
LayerWork WorkPrices::table(bool embedding) const {
  LayerWork w = embedding ? LayerWork{} : head_passes();
  if (embedding || !c_.model.tied || c_.pp * c_.chunks > 1) set_states(w, {table_held(c_), 0}, 0);
  return w;
}

int64_t WorkPrices::message() const {
  return nanoseconds(message_seconds(c_, d_, f_));
}
// trireme's own updates are layer by layer.
int64_t WorkPrices::update(const HeldParameters& h) const {
  return nanoseconds((c_.software.by_layer() ? 0 : update_seconds(c_, d_, f_, h)) + step_seconds(c_, d_, f_));
}

}  // namespace trireme
