#include "forecast/recompute.h"

#include <algorithm>

#include "base/progress.h"
#include "cost/flops.h"
#include "forecast/forecast.h"
#include "model/stages.h"
#include "spec/recompute.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// Elements of a token, in one block; with experts, in a block of these.
int64_t elements(const ModelSpec& m, std::string_view name) {
  if (name == "qkv" && m.latent())
    return (m.q_rank > 0 ? m.q_size() : 0) + m.heads * (m.nope_head_dim + m.v_head_dim);
  if (name == "qkv") return m.q_size() + 2 * m.kv_size();
  if (name == "o") return m.o_size();
  const int64_t wide = m.moe() ? m.experts_per_token * m.moe_ffn + m.shared_ffn : m.ffn;
  if (name == "u") return wide * (m.activation == "swiglu" ? 2 : 1);
  return name == "a" ? wide : m.hidden;
}

struct Limit {
  int64_t bytes = 0;
  bool asked = false;     // by recompute_limit; else the device's own
  bool snapshot = false;  // what checkpoints are written from is there too

  int64_t taken(const Booking& b) const { return b.arena_bytes + (snapshot ? b.snapshot_bytes : 0); }
  // With several kinds of devices: bytes that a booked rank's device has beyond `bytes`.
  std::function<int64_t(const Booking&)> more = [](const Booking&) { return 0; };
  bool holds(const Booking& b) const { return taken(b) <= bytes + more(b); }
};

Limit limit_of(const RunSpec& run, const ClusterSpec& cluster) {
  if (run.layout.recompute_limit > 0) return {.bytes = run.layout.recompute_limit, .asked = true};
  if (cluster.memory_bytes == 0)
    bad_request(
        "layout.recompute = \"auto\": no memory of this machine is known to stay within; give "
        "layout.recompute_limit, in bytes of a rank");
  Limit limit{.bytes = cluster.memory_bytes / ranks_on_device(run, cluster),
              .snapshot = !has_own_devices(cluster)};
  if (!cluster.kinds.empty())
    limit.more = [&](const Booking& b) { return memory_of_rank(cluster, run, b) - cluster.memory_bytes; };
  return limit;
}

// The n-th choice of `order` in the first `blocks` blocks of each stage (0: in all), the one before it in the
// rest. Beyond the last: in full.
RunSpec with_choice(RunSpec run, const std::vector<Texts>& order, size_t n, int64_t blocks) {
  LayoutSpec& l = run.layout;
  l.recompute_limit = 0, l.recompute_blocks = blocks;
  l.recompute = n == 0 ? "none" : n == order.size() ? "full" : "selective";
  l.recompute_tensors = n > 0 && n < order.size() ? order[n] : LayoutSpec().recompute_tensors;
  l.recompute_rest = blocks > 0 ? order[n - 1] : Texts();
  l.recompute_shard = l.recompute_shard && l.recompute == "full";
  return run;
}

int64_t most_blocks(const RunSpec& run) {
  int64_t most = 0;
  for (const StageRange& s : split_layers(run, int(run.layout.pp * run.layout.chunks)))
    most = std::max(most, s.last - s.first);
  return most;
}

}  // namespace

// What costs no product comes at once; then one by one.
std::vector<Texts> recompute_order(const ModelSpec& m, int64_t seq) {
  struct Priced {
    std::string name;
    double flops_per_element;
  };
  std::vector<Priced> all;
  for (std::string_view name : kRecomputed) {
    const double flops = recompute_flops_per_token(m, seq, m.moe(), recompute_of(Texts(std::string(name))));
    all.push_back({std::string(name), flops / double(elements(m, name))});
  }
  std::stable_sort(all.begin(), all.end(), [](const Priced& a, const Priced& b) {
    return a.flops_per_element < b.flops_per_element;
  });
  std::vector<Texts> order(1);
  Texts so_far;
  for (size_t i = 0; i < all.size(); i++) {
    so_far.list.push_back(all[i].name);
    if (i + 1 == all.size() || all[i + 1].flops_per_element > 0) order.push_back(so_far);
  }
  return order;
}

RunSpec choose_recompute(RunSpec run, const ClusterSpec& cluster, int threads) {
  if (run.layout.recompute != "auto") return run;
  const Limit limit = limit_of(run, cluster);
  const std::vector<Texts> order = recompute_order(run.model, run.data.seq_len);
  const auto booked = [&](size_t n, int64_t blocks) {
    const RunSpec r = with_choice(run, order, n, blocks);
    return book_training(r, schedule_of(r), threads, cluster);
  };
  size_t n = 0;
  Booking b = booked(0, 0);
  for (; !limit.holds(b) && n < order.size(); n++) b = booked(n + 1, 0);
  if (!limit.holds(b) && !limit.asked) return with_choice(run, order, n, 0);  // the forecast says why not
  if (!limit.holds(b))
    bad_request(
        "layout.recompute = \"auto\": with all blocks computed again a rank still takes {}, and {} are "
        "allowed; give a smaller batch.micro than {}, or a larger layout.recompute_limit",
        exact_bytes(limit.taken(b)), exact_bytes(limit.bytes), run.batch.micro);
  if (n == 0) return with_choice(run, order, 0, 0);
  // (low, high]: high blocks are enough, low are not.
  int64_t low = 0, high = most_blocks(run);
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (limit.holds(booked(n, middle)) ? high : low) = middle;
  }
  return with_choice(run, order, n, high < most_blocks(run) ? high : 0);
}

}  // namespace trireme
