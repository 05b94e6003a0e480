#include "train/spike_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/json.h"
#include "trace/metrics.h"

namespace trireme {
namespace {

constexpr size_t kMostTold = 3;  // in the line for the user

// Indices by falling loss; what is not finite first.
std::vector<size_t> by_loss(std::span<const double> losses) {
  std::vector<size_t> order(losses.size());
  std::iota(order.begin(), order.end(), size_t(0));
  const auto key = [&](size_t i) { return std::isfinite(losses[i]) ? losses[i] : HUGE_VAL; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) > key(b); });
  return order;
}

std::string why(const SpikeVerdict& v, const StepResult& r) {
  if (!v.finite) return fmt::format("loss {} and gradient norm {} are not finite", r.loss, r.grad_norm);
  return fmt::format(
      "outlier: loss {:.4f} (median {:.4f}, z {:.1f}), gradient norm {:.4g} (median {:.4g}, z {:.1f})",
      r.loss, v.loss_median, v.loss_z, r.grad_norm, v.norm_median, v.norm_z);
}

}  // namespace

SpikeFile::SpikeFile(fs::path path, int64_t done) : path_(std::move(path)) {
  keep_lines_up_to(path_, done);
}

std::string SpikeFile::write(int64_t step, const StepResult& r, std::span<const double> losses,
                             Batches& batches, int64_t seq_len, const std::string& action) {
  const SpikeVerdict& v = *r.spike;
  nlohmann::ordered_json line;
  line["step"] = step;
  line["reason"] = v.finite ? "outlier" : "not finite";
  line["loss"] = r.loss;
  line["loss_z"] = v.loss_z;
  line["loss_median"] = v.loss_median;
  line["grad_norm"] = r.grad_norm;
  line["grad_norm_z"] = v.norm_z;
  line["grad_norm_median"] = v.norm_median;
  line["action"] = action;
  std::vector<std::string> told;
  for (const size_t i : by_loss(losses)) {
    if (line["sequences"].size() == kMostNamed) break;
    const Batches::NamedSequence s = batches.sequence(step, int64_t(i));
    line["sequences"].push_back({{"shard", s.shard},
                                 {"tokens", {s.first_token, s.last_token}},
                                 {"documents", {s.first_document, s.last_document}},
                                 {"loss", losses[i] / double(seq_len)}});
    if (told.size() < kMostTold)
      told.push_back(fmt::format("{} tokens {}-{} (documents {}-{}, loss {:.3f})", s.shard, s.first_token,
                                 s.last_token, s.first_document, s.last_document,
                                 losses[i] / double(seq_len)));
  }
  append_line(path_, line.dump());
  return fmt::format("step {}: {}: {}; highest losses: {}; see {}", step, why(v, r), action,
                     fmt::join(told, ", "), path_.string());
}

}  // namespace trireme
