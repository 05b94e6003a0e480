// Sweeps in words, as JSON and as pictures.
#include "search/search_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "cost/flops.h"
#include "search/one_kind.h"
#include "search/search_chart.h"

namespace trireme {
namespace {

using SweepJson = nlohmann::ordered_json;
constexpr double kGigaTokens = 1e9, kSweptGiga = 1e9;

std::string cost_text_of(const SearchRequest& q, const Priced& p) {
  return q.price > 0 ? fmt::format("{:.2f}", p.cost * kGigaTokens)
                     : fmt::format("{:.1f} h", p.cost * kGigaTokens);
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

std::string sweep_text(const SearchRequest& q, const Sweep& s) {
  std::string out =
      fmt::format("{} on {}, {}{} sequences of {} tokens a step, the best layout of each number\n", q.name,
                  q.site.kinds.size() > 1 ? devices_text(q) : q.device, q.globals.size() > 1 ? "up to " : "",
                  q.globals.back(), q.seq);
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
