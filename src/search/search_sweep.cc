#include "search/search_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "cost/flops.h"
#include "search/search_chart.h"

namespace trireme {
namespace {

using SweepJson = nlohmann::ordered_json;
constexpr double kGigaTokens = 1e9, kSweptGiga = 1e9;

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

std::string cost_text_of(const SearchRequest& q, const Priced& p) {
  return q.price > 0 ? fmt::format("{:.2f}", p.cost * kGigaTokens)
                     : fmt::format("{:.1f} h", p.cost * kGigaTokens);
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

// Its simulated step and booked bytes, "-" where there are none.
std::string confirmed_columns(const SweepRow& r) {
  const bool simulated = r.confirmed && r.confirmed->step_s > 0;
  return fmt::format("{:>10} {:>9}", simulated ? fmt::format("{:.3f} s", r.confirmed->step_s) : "-",
                     r.confirmed ? fmt::format("{:.1f} GB", r.confirmed->bytes / kSweptGiga) : "-");
}

SweepJson row_json(const SearchRequest& q, const SweepRow& r) {
  SweepJson j = {{"gpus", r.gpus}, {"fits", r.any}};
  if (!r.any) return j;
  j["layout"] = text_of(r.best.layout);
  j["step_s"] = r.best.time.total;
  j["confirmed"] = r.confirmed.has_value();
  j["simulated_s"] = j["booked_bytes"] = nullptr;
  if (r.confirmed) j["booked_bytes"] = r.confirmed->arena, j["base"] = r.best.memory.base;
  if (r.confirmed && r.confirmed->step_s > 0) j["simulated_s"] = r.confirmed->step_s;
  j["tokens_per_s"] = 1 / r.best.token_s;
  j["mfu"] = r.mfu;
  j["goodput"] = r.goodput.share;
  j["spares"] = r.goodput.spares;
  j["cost_per_1e9_tokens"] = r.best.cost * kGigaTokens;
  if (q.by == RankBy::loss) j["seconds_to_loss"] = r.best.score, j["global"] = r.best.layout.global;
  if (r.speedup > 0) j["speedup"] = r.speedup, j["eats"] = r.eats, j["eaten"] = r.eaten;
  return j;
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

std::string sweep_text(const SearchRequest& q, const Sweep& s) {
  std::string out =
      fmt::format("{} on {}, {}{} sequences of {} tokens a step, the best layout of each number\n", q.name,
                  q.device, q.globals.size() > 1 ? "up to " : "", q.globals.back(), q.seq);
  if (!q.note.empty()) out += q.note + "\n";
  out +=
      fmt::format("{:>7} {:>10} {:>10} {:>9} {:>11} {:>7} {:>8} {:>11} {:>7}  {}\n", "GPUs", "step",
                  "simulated", "booked", "tokens/s", "MFU", "goodput", q.price > 0 ? "cost/1e9" : "dev-h/1e9",
                  "speedup", "layout; what the doubling lost most to");
  for (const SweepRow& r : s.rows) {
    if (!r.any) {
      out += fmt::format("{:7} nothing fits\n", r.gpus);
      continue;
    }
    out += fmt::format("{:7} {:8.3f} s {} {:11.0f} {:5.1f} % {:6.1f} % {:>11} {:>7}  {}", r.gpus,
                       r.best.time.total, confirmed_columns(r), 1 / r.best.token_s, 100 * r.mfu,
                       100 * r.goodput.share, cost_text_of(q, r.best),
                       r.speedup > 0 ? fmt::format("{:.2f}", r.speedup) : "", text_of(r.best.layout));
    if (q.by == RankBy::loss)
      out += fmt::format("; batch {}, {:.1f} days", r.best.layout.global, r.best.score / 86400);
    if (r.speedup > 0 && !r.eats.empty()) out += fmt::format("; {} {:.1f} %", r.eats, 100 * r.eaten);
    out += "\n";
    if (r.gpus == s.enough)
      out += fmt::format("        ---- one more doubling is less than {} times as fast\n", kPays);
  }
  if (s.looked_at == 0)
    return out +
           "rows are closed forms, not booked: --confirm N books and simulates the best of each, and drops "
           "what does not fit\n";
  return out +
         fmt::format(
             "{} layouts booked on meta and simulated event by event in {:.1f} s, {} dropped: too large "
             "as booked; -: this version cannot run the best\n",
             s.looked_at, s.confirm_s, s.dropped);
}

std::string sweep_json(const SearchRequest& q, const Sweep& s) {
  SweepJson j;
  j["sweep"] = SweepJson::array();
  for (const SweepRow& r : s.rows) j["sweep"].push_back(row_json(q, r));
  j["enough"] = s.enough > 0 ? SweepJson(s.enough) : SweepJson();
  return j.dump(2) + "\n";
}

std::string sweep_svg(const SearchRequest& q, const Sweep& s) {
  ChartSeries real{.name = "best layout"}, ideal{.name = "if each doubling doubled it"};
  double first = 0;
  for (const SweepRow& r : s.rows) {
    if (!r.any) continue;
    if (first == 0) first = 1 / r.best.token_s / double(r.gpus);
    const bool enough = r.gpus == s.enough;
    real.points.push_back({double(r.gpus), 1 / r.best.token_s,
                           enough ? fmt::format("{} are enough", r.gpus) : text_of(r.best.layout), enough});
    ideal.points.push_back({double(r.gpus), first * double(r.gpus), ""});
  }
  return svg_of(Chart{.title = fmt::format("{} on {}: tokens a second of the best layout", q.name, q.device),
                      .x = {.title = "devices", .logarithmic = true},
                      .y = {.title = "tokens a second, failures included", .logarithmic = true},
                      .series = {real, ideal}});
}

std::string mix_svg(const SearchRequest& q, const Sweep& s) {
  struct Degree {
    const char* name;
    int64_t (*of)(const SearchLayout&);
  };
  constexpr Degree kDegrees[] = {{"tp", [](const SearchLayout& l) { return l.tp; }},
                                 {"pp", [](const SearchLayout& l) { return l.pp; }},
                                 {"cp", [](const SearchLayout& l) { return l.cp; }},
                                 {"dp", [](const SearchLayout& l) { return l.dp; }},
                                 {"ep", [](const SearchLayout& l) { return l.ep; }},
                                 {"microbatches", [](const SearchLayout& l) { return l.microbatches(); }}};
  Chart c{.title = fmt::format("{} on {}: degrees of the best layout", q.name, q.device),
          .x = {.title = "tokens of a step a device", .logarithmic = true},
          .y = {.title = "degree", .logarithmic = true}};
  for (const Degree& d : kDegrees) {
    if (!q.model.moe() && std::string_view(d.name) == "ep") continue;
    ChartSeries line{.name = d.name};
    for (auto r = s.rows.rbegin(); r != s.rows.rend(); ++r)  // few tokens a device first
      if (r->any)
        line.points.push_back({step_tokens(q, r->best.layout) / double(r->gpus), double(d.of(r->best.layout)),
                               fmt::format("{} devices: {}", r->gpus, text_of(r->best.layout))});
    c.series.push_back(std::move(line));
  }
  return svg_of(c);
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

// Layers beyond which states alone, divided by all devices, are too large: 2 bytes of weights, 2 of
// gradients, and those of the optimizer if there is no disk for them.
int64_t layers_at_most(const SearchRequest& q) {
  const double least = q.disk > 0 ? 4 : 4 + q.optimizer,
               room = q.figures.memory * q.memory_share * double(q.gpus[0]);
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
    return r.memory.total <= of.figures.memory * of.memory_share;
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

std::string largest_text(const SearchRequest& q, const std::vector<LargestRow>& rows) {
  std::string s = fmt::format(
      "the largest of {}'s family on {} x {}, {:.1f} GB each, {} sequences of {} tokens a step\n", q.name,
      q.gpus[0], q.device, q.figures.memory * q.memory_share / kSweptGiga, q.globals[0], q.seq);
  s += fmt::format("{:28} {:>10} {:>7} {:>7} {:>7} {:>8} {:>8}  {}\n", "technique", "parameters", "times",
                   "layers", "hidden", "states", "kept", "layout");
  const double first = rows.empty() || !rows[0].any ? 0 : rows[0].parameters;
  for (const LargestRow& r : rows) {
    if (!r.any) {
      s += fmt::format("{:28} {}\n", r.technique, r.why);
      continue;
    }
    s += fmt::format("{:28} {:8.2f} B {:>7} {:7} {:7} {:5.1f} GB {:5.1f} GB  {}\n", r.technique,
                     r.parameters / 1e9, first > 0 ? fmt::format("{:.1f}", r.parameters / first) : "",
                     r.model.layers, r.model.hidden, r.memory.states / kSweptGiga,
                     (r.memory.activations + r.memory.gradients + r.memory.logits) / kSweptGiga,
                     text_of(r.layout));
  }
  s += "in closed form: what is booked (holes, the schedule's own) can be some percent more, so `plan` one "
       "that is "
       "meant\n";
  return s;
}

std::string largest_json(const SearchRequest& q, const std::vector<LargestRow>& rows) {
  SweepJson j;
  j["gpus"] = q.gpus[0], j["global"] = q.globals[0], j["memory_bytes"] = q.figures.memory * q.memory_share;
  j["largest"] = SweepJson::array();
  for (const LargestRow& r : rows) {
    SweepJson one = {{"technique", r.technique}, {"fits", r.any}};
    if (r.any) {
      one["parameters"] = r.parameters, one["layers"] = r.model.layers, one["hidden"] = r.model.hidden;
      one["heads"] = r.model.heads, one["kv_heads"] = r.model.kv_heads, one["ffn"] = r.model.ffn;
      one["vocab"] = r.model.vocab, one["memory"] = r.memory.total;
      one["layout"] = text_of(r.layout);
    }
    if (!r.any) one["why_rejected"] = r.why;
    j["largest"].push_back(one);
  }
  return j.dump(2) + "\n";
}

}  // namespace trireme
