#include "search/search_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "cost/flops.h"
#include "search/search_chart.h"

namespace trireme {
namespace {

// Device-seconds a token by toll, and what failures and spares take.
std::vector<std::pair<std::string, double>> shares_of(const SearchRequest& q, const SweepRow& r) {
  const double devices = double(r.gpus) / step_tokens(q, r.best.layout);
  std::vector<std::pair<std::string, double>> all = tolls_of(r.best.time);
  for (auto& [name, seconds] : all) seconds *= devices;
  const double whole = r.best.token_s * double(r.goodput.paid);
  all.emplace_back("failures and spares", whole - r.best.time.total * devices);
  return all;
}

void compare(const SearchRequest& q, const SweepRow& before, SweepRow& row) {
  row.speedup = seconds_of(q, before.best) / seconds_of(q, row.best);
  const auto old = shares_of(q, before);
  double most = 0;
  for (const auto& [name, seconds] : shares_of(q, row)) {
    const auto was =
        std::find_if(old.begin(), old.end(), [&, n = name](const auto& o) { return o.first == n; });
    const double grown = seconds - was->second;
    if (grown > most) most = grown, row.eats = name;
  }
  row.eaten = most / (row.best.token_s * double(row.goodput.paid));
}

// The best of a search that is confirmed; none: this version cannot run it, or the search has no more.
std::optional<Confirmed> confirmed_best(SearchRequest& q, SearchResult& r, const ConfirmRequest& how,
                                        Sweep& s) {
  const Confirmation all = search_and_confirm(q, r, how);
  s.looked_at += int64_t(all.looked_at.size()), s.dropped += all.dropped, s.confirm_s += all.seconds;
  for (const Confirmed& c : all.looked_at)
    if (!r.best.empty() && c.booked && c.priced.layout == r.best[0].layout) return c;
  return {};
}
}  // namespace

Sweep sweep(const SearchRequest& q, const ConfirmRequest* how) {
  Sweep s;
  for (const int64_t gpus : q.gpus) {
    SearchRequest one = q;
    one.gpus = {gpus}, one.best = how ? kept_to_confirm(q) : 1;
    SweepRow row{.gpus = gpus, .confirmed = {}, .goodput = goodput_of(q, gpus)};
    SearchResult r;
    if (how)
      row.confirmed = confirmed_best(one, r, *how, s);
    else
      r = search(one);
    row.any = !r.best.empty();
    if (row.any) row.best = r.best[0], row.mfu = mfu_of(q, row.best);
    if (row.any && !s.rows.empty() && s.rows.back().any) compare(q, s.rows.back(), row);
    if (row.speedup > 0 && row.speedup < kPays && s.enough == 0) s.enough = s.rows.back().gpus;
    s.rows.push_back(std::move(row));
  }
  return s;
}

// ---- the largest model ----

ModelSpec scaled_model(const ModelSpec& m, int64_t layers, int64_t seq) {
  ModelSpec s = m;
  const double ratio = double(layers) / double(m.layers);
  s.layers = layers;
  const int64_t unit = m.heads % 8 == 0 ? 8 : 1;
  const auto scaled = [&](int64_t n, int64_t step) {
    return n == 0 ? 0 : std::max(step, int64_t(std::llround(double(n) * ratio / double(step))) * step);
  };
  s.heads = scaled(m.heads, unit);
  s.kv_heads = m.kv_heads == m.heads ? s.heads : std::min(m.kv_heads, s.heads);
  while (s.heads % s.kv_heads != 0) s.kv_heads--;
  const int64_t wide = m.hidden % 128 == 0 ? 128 : 1;
  s.hidden = m.hidden == m.heads * m.head_dim ? s.heads * m.head_dim : scaled(m.hidden, wide);
  s.ffn = scaled(m.ffn, wide), s.moe_ffn = scaled(m.moe_ffn, wide), s.shared_ffn = scaled(m.shared_ffn, wide);
  s.dense_layers = std::min(m.dense_layers, layers - 1);
  s.max_positions = 0;
  s.finish(seq);
  return s;
}

double most_parameters_by_states(double memory, int zero, int64_t dp, int64_t tp) {
  const double n = double(dp);
  const double bytes = 2 / (zero >= 3 ? n : 1) + 2 / (zero >= 2 ? n : 1) + 12 / (zero >= 1 ? n : 1);
  return memory / bytes * double(tp);
}
namespace {

struct Technique {
  std::string_view name;
  // Its layout of a model, from one of data parallel ranks alone; false: these devices and this model have
  // none.
  bool (*apply)(SearchLayout&, const SearchRequest&, const ModelSpec&);
  std::string_view without;  // what is said where no member of the family has one
};

// The most of one axis, up to `most`, that a run of the model could have; the rest is data parallel.
bool spread(SearchLayout& l, int64_t SearchLayout::*axis, int64_t most, const SearchRequest& q,
            const ModelSpec& m) {
  for (int64_t n = std::min(most, l.gpus); n > 1; n--) {
    if (l.gpus % n != 0) continue;
    SearchLayout divided = l;
    divided.*axis = n, divided.dp = l.gpus / n;
    if (division_refusal(m, q.seq, divided) != Refusal::count) continue;
    l = divided;
    return true;
  }
  return false;
}

bool shard(SearchLayout& l, int zero) {
  l.zero = zero;
  return l.dp > 1;
}

constexpr std::string_view kOneDevice = "one device has no replicas that share";

constexpr Technique kTechniques[] = {
    {"data parallel alone", [](SearchLayout&, const SearchRequest&, const ModelSpec&) { return true; }, ""},
    {"full recompute",
     [](SearchLayout& l, const SearchRequest&, const ModelSpec&) {
       l.again = Again::full;
       return true;
     },
     ""},
    {"zero 1", [](SearchLayout& l, const SearchRequest&, const ModelSpec&) { return shard(l, 1); },
     kOneDevice},
    {"zero 2", [](SearchLayout& l, const SearchRequest&, const ModelSpec&) { return shard(l, 2); },
     kOneDevice},
    {"zero 3", [](SearchLayout& l, const SearchRequest&, const ModelSpec&) { return shard(l, 3); },
     kOneDevice},
    {"tensor parallel in a node",
     [](SearchLayout& l, const SearchRequest& q, const ModelSpec& m) {
       return spread(l, &SearchLayout::tp, int64_t(q.figures.near), q, m);
     },
     "no tp inside a node divides heads, feed-forward, vocabulary, sequence and batch"},
    {"context parallel in a node",
     [](SearchLayout& l, const SearchRequest& q, const ModelSpec& m) {
       return spread(l, &SearchLayout::cp, int64_t(q.figures.near), q, m);
     },
     "no cp inside a node divides the sequence into pairs of chunks, and the batch"},
    {"pipeline over all",
     [](SearchLayout& l, const SearchRequest& q, const ModelSpec& m) {
       return spread(l, &SearchLayout::pp, m.layers, q, m);
     },
     "no number of stages divides the devices, and the batch"},
    {"state offloaded",
     [](SearchLayout& l, const SearchRequest&, const ModelSpec&) {
       l.offload = true;
       return true;
     },
     ""},
};

constexpr int64_t kMostLayers = 4096;

// Bytes of all devices together.
double memory_of_all(const SearchRequest& q) {
  if (!q.kinds) return q.figures.memory * double(q.gpus[0]);
  LayoutSpec alone;
  alone.pp = q.gpus[0];
  double sum = 0;
  for (const int64_t number : *q.kinds->of_ranks(alone)) sum += q.kinds->at(number).figures.memory;
  return sum;
}

// Layers beyond which states alone, divided by all devices, are too large: 2 bytes of weights, 2 of
// gradients, and those of the optimizer if there is no disk for them.
int64_t layers_at_most(const SearchRequest& q) {
  const double least = q.disk > 0 ? 4 : 4 + q.optimizer, room = memory_of_all(q) * q.memory_share;
  int64_t low = 0, high = kMostLayers + 1;  // low: can be; high: cannot. Parameters grow with every layer.
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    const double states = least * double(parameters(scaled_model(q.model, middle, q.seq)));
    (states <= room ? low : high) = middle;
  }
  return low;
}

// From above, the first that `fits` puts into the row: degrees that divide one member of a family may not
// divide the next, so what fits has no single edge.
template <class Fits>
LargestRow largest_that(const SearchRequest& q, std::string_view name, Fits&& fits) {
  LargestRow row{.technique = std::string(name), .why = "not even one layer fits"};
  for (int64_t layers = layers_at_most(q); layers >= 1; layers--) {
    SearchRequest of = q;
    of.model = scaled_model(q.model, layers, q.seq);
    if (!fits(of, row)) continue;
    row.any = true, row.why.clear();
    row.parameters = double(parameters(of.model)), row.model = std::move(of.model);
    break;
  }
  return row;
}

LargestRow largest_alone(const SearchRequest& q, const Technique& t) {
  Refusal refusal = Refusal::count;
  bool tried = false, divides = false;
  LargestRow row = largest_that(q, t.name, [&](const SearchRequest& of, LargestRow& r) {
    SearchLayout l{.gpus = q.gpus[0], .global = q.globals[0], .dp = q.gpus[0]};
    tried = true;
    if (!t.apply(l, of, of.model)) return false;
    refusal = division_refusal(of.model, of.seq, l);
    if (refusal != Refusal::count) return false;
    divides = true;
    r.layout = l;
    r.memory = closed_memory(of, l);
    return r.memory.used() <= of.figures.memory * of.memory_share;
  });
  if (row.any || divides || !tried) return row;
  if (refusal == Refusal::batch)
    row.why = fmt::format("{} replicas do not divide {} sequences a step", q.gpus[0], q.globals[0]);
  else if (refusal != Refusal::count)
    row.why = text_of(refusal);
  else if (!t.without.empty())
    row.why = t.without;
  return row;
}
}  // namespace

std::vector<LargestRow> largest(const SearchRequest& q) {
  std::vector<LargestRow> rows;
  for (const Technique& t : kTechniques) {
    if (t.name == kTechniques[std::size(kTechniques) - 1].name && q.disk <= 0) continue;
    rows.push_back(largest_alone(q, t));
  }
  rows.push_back(largest_that(q, "all together", [&](const SearchRequest& of, LargestRow& r) {
    SearchRequest one = of;
    one.best = 1;
    const SearchResult found = search(one);
    if (found.best.empty()) return false;
    r.layout = found.best[0].layout, r.memory = found.best[0].memory;
    return true;
  }));
  return rows;
}

}  // namespace trireme
