#include "sim/published.h"

#include <algorithm>
#include <functional>

namespace trireme {
namespace {

std::vector<int> by_rank(int pp, const std::function<int(int)>& held) {
  std::vector<int> all;
  for (int r = 0; r < pp; r++) all.push_back(held(r));
  return all;
}

// 1F1B and GPipe idle for p - 1 microbatches; the others are held against it.
Published classic(std::string_view name, int p, int v, int m, int64_t whole) {
  if (name == "gpipe") return {"(p-1)(F+I+W)", "m", (p - 1) * whole, by_rank(p, [&](int) { return m; })};
  if (name == "1f1b")
    return {"(p-1)(F+I+W)", "p - r", (p - 1) * whole, by_rank(p, [&](int r) { return std::min(m, p - r); })};
  const bool groups = m % p == 0;
  Published out{"(p-1)(F+I+W)/v", "p (1 + (p-1)/(p v)) on rank 0", std::nullopt, {}};
  if (groups) out.idle = (p - 1) * whole / v;
  if (groups)
    out.held = by_rank(p, [&](int r) { return std::min(v * m, (v - 1) * p + 2 * (p - 1 - r) + 1); });
  return out;
}

}  // namespace

std::optional<Published> published_of(std::string_view name, int p, int v, int m, const StageTimes& t) {
  const int64_t f = t.forward, i = t.input, w = t.weight;
  const bool short_w = w <= f && w <= i, link = t.send > 0;
  const auto if_exact = [&](bool exact, int64_t idle) {
    return exact && !link ? std::optional<int64_t>(idle) : std::nullopt;
  };
  std::optional<Published> out;
  if (name == "gpipe" || name == "1f1b" || name == "interleaved") out = classic(name, p, v, m, f + i + w);
  if (name == "zb-h1") out = {"(p-1)(F+I-W)", "p", if_exact(short_w && m >= p, (p - 1) * (f + i - w)), {}};
  if (name == "zb-h2")
    out = {"(p-1)(F+I-2W)", "2p-1", if_exact(short_w && m >= 2 * p - 1, (p - 1) * (f + i - 2 * w)), {}};
  if (name == "zb-v") out = {"0 at F = I = W", "p", if_exact(f == i && i == w && m >= 2 * p - 1, 0), {}};
  if (name == "v-half") out = {"about (p-1)(F+I+W)/2", "(p+2)/2, rounded down, at most", std::nullopt, {}};
  if (name == "v-min") out = {"about 2(p-1)(F+I+W)/3", "(p+4)/3, rounded down, at most", std::nullopt, {}};
  // With more than one such summand, pairs that hide something leave less idle time than this.
  const auto pairs_as_printed = [&](int summands) {
    return f == i && w <= i && m >= 2 * p && (t.hidden == 0 || summands == 1);
  };
  const int64_t dual = f + 2 * i - w - t.hidden;  // F&B + B - 3W
  if (name == "dualpipe")
    out = {"(p/2-1)(F&B+B-3W)",
           "p+1",
           if_exact(pairs_as_printed(p / 2 - 1) && m % 2 == 0, (p / 2 - 1) * dual),
           {}};
  if (name == "dualpipe-v")
    out = {"(p-1)(F&B+B-3W)/2", "p + 1/2", if_exact(pairs_as_printed(p - 1), (p - 1) * dual / 2), {}};
  if (!out) return out;
  if (link) out->idle.reset();
  if (name == "zb-h1" && m >= p) out->held.assign(size_t(p), p);
  if (name == "zb-h2" && m >= 2 * p - 1) out->held.assign(size_t(p), 2 * p - 1);
  if (name == "zb-v" && m >= 2 * p - 1) out->held.assign(size_t(p), 2 * p);
  // As the authors' page has it,
  // https://huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-memory
  if (name == "v-half" && m >= 2 * p) out->most_held = 2 * ((p + 2) / 2);
  if (name == "v-min" && m >= 2 * p) out->most_held = 2 * ((p + 4) / 3);
  if (name == "dualpipe" && m >= 2 * p && m % 2 == 0) out->held.assign(size_t(p), p + 1);
  if (name == "dualpipe-v" && m >= 2 * p) out->held.assign(size_t(p), 2 * p + 1);
  return out;
}

}  // namespace trireme
