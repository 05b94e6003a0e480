#include "cost/walls.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cost/flops.h"

namespace trireme {

double zero_state_bytes(double parameters, int zero, double n, const BucketBytes& per) {
  require(n >= 1, "a state of no replicas");
  const auto part = [&](Bucket b, int divided_from) {
    return double(per[size_t(b)]) / (zero >= divided_from ? n : 1);
  };
  return parameters * (part(Bucket::weights, 3) + part(Bucket::grads, 2) + part(Bucket::optimizer, 1));
}
double zero_saving(int zero, double n, const BucketBytes& per) {
  return zero_state_bytes(1, 0, 1, per) / zero_state_bytes(1, zero, n, per);
}
double zero_traffic(int zero, double microbatches) {
  if (zero >= 3) return 1.5 * microbatches;
  return zero == 2 ? (microbatches + 1) / 2 : 1;
}

double tensor_parallel_bytes(double rows, double hidden, double tp) {
  constexpr double kHalf = 2, kReductions = 4;
  return kReductions * 2 * (tp - 1) / tp * kHalf * rows * hidden;
}

double all_to_all_bytes(double rows, double hidden, double top_k, double ep) {
  constexpr double kHalf = 2, kExchanges = 4;
  return kExchanges * (ep - 1) / ep * kHalf * rows * hidden * top_k;
}
double devices_at_least(double bytes, double device_memory) {
  require(device_memory > 0, "devices without memory");
  return std::max(1.0, std::ceil(bytes / device_memory));
}

double six_n_d(double parameters, double tokens) {
  return 6 * parameters * tokens;
}
double recompute_factor(double share) {
  return (3 + share) / 3;
}
double training_seconds(double flops, double devices, double peak, double mfu) {
  require(devices > 0 && peak > 0 && mfu > 0, "training time without devices, peak or MFU");
  return flops / (devices * peak * mfu);
}

double wasted_share(double mfu, double reach) {
  return 1 - mfu / reach;
}
double more_training(double mfu, double reach) {
  return reach / mfu - 1;
}

bool bubble_is_plain(std::string_view schedule) {
  return schedule == "1f1b" || schedule == "gpipe" || schedule == "interleaved";
}

Ratio bubble_share(int64_t stages, int64_t microbatches, int64_t chunks) {
  require(stages >= 1 && microbatches >= 1 && chunks >= 1, "a pipeline without stages or microbatches");
  return {stages - 1, chunks * microbatches + stages - 1};
}

double kept_activation_bytes(const ActivationsCase& c) {
  const double sbh = c.seq * c.micro * c.hidden, t = c.tp;
  if (c.kept == KeptActivations::input) return 2 * sbh / (c.sequence ? t : 1);
  const double scores = c.kept == KeptActivations::all ? 5 * c.heads * c.seq / c.hidden / t : 0;
  return sbh * (10 / (c.sequence ? t : 1) + 24 / t + scores);
}

double kv_cache_bytes(const ModelSpec& m, double context, double batch) {
  constexpr double kHalf = 2;
  const double row = m.latent() ? double(m.kv_rank + m.rope_head_dim) : 2 * double(m.kv_size());
  return kHalf * double(m.layers) * row * context * batch;
}

}  // namespace trireme
