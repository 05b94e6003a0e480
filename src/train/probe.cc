#include "train/probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "comm/comm_set.h"

namespace trireme {

LossProbe::LossProbe(const RunSpec& run) : micro_(run.batch.micro), seq_(run.data.seq_len) {
  for (auto* kept : {&tokens_, &targets_, &positions_}) kept->resize(size_t(micro_ * seq_));
}

FillBatch LossProbe::keep(FillBatch fill) {
  return [this, fill = std::move(fill)](int64_t step, int64_t mb, const HostBatch& b) {
    fill(step, mb, b);
    if (mb != 0) return;
    std::copy(b.tokens.begin(), b.tokens.end(), tokens_.begin());
    std::copy(b.targets.begin(), b.targets.end(), targets_.begin());
    std::copy(b.positions.begin(), b.positions.end(), positions_.begin());
  };
}

namespace {

// Throws at the first op with an output that is not finite. Values go to the host, which works on any device.
class HostFinder : public OpObserver {
 public:
  HostFinder(StageRunner& runner, int64_t step) : runner_(runner), step_(step) {}

  void after(std::string_view op, const Cost&, const Outputs& outputs) override {
    for (int i = 0; i < outputs.n; i++) {
      const Tensor& t = outputs.t[i];
      if (!t || (t.dtype != DType::f32 && t.dtype != DType::bf16 && t.dtype != DType::f16)) continue;
      const int64_t bad = nonfinite_values(t);
      if (bad > 0)
        run_failed(
            "step {}: with its new weights {} of {} values are not finite, first in the output of {} in "
            "layer {}",
            step_, bad, t.numel(), op, runner_.layer());
    }
  }

 private:
  // All bits of the exponent are set in these values, and in no other.
  int64_t nonfinite_values(const Tensor& t) {
    if (!t.contiguous()) {  // part by part of the outermost dim
      Tensor part = t;
      part.shape.rank = t.shape.rank - 1;
      for (int d = 0; d < part.shape.rank; d++) {
        part.shape.dim[size_t(d)] = t.shape[d + 1];
        part.stride[size_t(d)] = t.stride[size_t(d + 1)];
      }
      int64_t bad = 0;
      for (int64_t i = 0; i < t.shape[0]; i++) {
        part.data = t.data + i * t.stride[0] * size_of(t.dtype);
        bad += nonfinite_values(part);
      }
      return bad;
    }
    host_.resize(size_t(t.bytes()));
    runner_.device().download(host_.data(), t);
    auto count = [&]<class Bits>(Bits exponent) {
      int64_t bad = 0;
      for (size_t at = 0; at + sizeof(Bits) <= host_.size(); at += sizeof(Bits)) {
        Bits bits;
        std::memcpy(&bits, host_.data() + at, sizeof bits);
        bad += (bits & exponent) == exponent;
      }
      return bad;
    };
    if (t.dtype == DType::f32) return count(uint32_t{0x7f800000});
    return count(t.dtype == DType::bf16 ? uint16_t{0x7f80} : uint16_t{0x7c00});
  }

  StageRunner& runner_;
  const int64_t step_;
  std::vector<std::byte> host_;
};

}  // namespace

void LossProbe::check(StageRunner& runner, Communicator& control, int64_t step) const {
  const FillBatch kept = [this](int64_t, int64_t, const HostBatch& b) {
    std::copy(tokens_.begin(), tokens_.end(), b.tokens.begin());
    std::copy(targets_.begin(), targets_.end(), b.targets.begin());
    std::copy(positions_.begin(), positions_.end(), b.positions.begin());
  };
  const StageRunner::TokenLoss loss = runner.evaluate(micro_, seq_, kept);
  if (agree_max(control, std::isfinite(loss.sum) ? 0 : 1) == 0) return;
  std::string what;
  try {
    HostFinder finder(runner, step);
    OpObserver* before = runner.device().kernels().observe(&finder);
    runner.evaluate(micro_, seq_, kept);
    runner.device().kernels().observe(before);
    agree_max(control, 0);  // a rank that found it is reported first
    what = fmt::format("step {}: the loss is not finite, yet no op's output shows it when run again", step);
  } catch (const Error& e) {
    what = e.what();
  }
  run_failed("{}: the update of step {} damaged the weights, so they were not saved", what, step);
}

}  // namespace trireme
