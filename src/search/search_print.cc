// What a search found: as text, as JSON, and the front as a picture.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "search/confirm.h"
#include "search/one_kind.h"
#include "search/search.h"
#include "search/search_chart.h"
#include "search/search_costs.h"
#include "search/search_flip.h"
#include "spec/run_spec.h"
#include "spec/size_rule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

using SearchJson = nlohmann::ordered_json;
constexpr double kShownGiga = 1e9, kPerTokens = 1e9;

std::string count_text(int64_t n) {
  std::string s = std::to_string(n);
  for (auto i = int64_t(s.size()) - 3; i > 0; i -= 3) s.insert(size_t(i), ",");
  return s;
}

std::string loss_hours(const Priced& p) {
  return fmt::format("{:.1f} days", p.score / 86400);
}

std::string cost_text(const SearchRequest& q, const Priced& p) {
  const double c = p.cost * kPerTokens;
  return q.price > 0 ? fmt::format("{:.2f}", c) : fmt::format("{:.1f} h", c);
}

// "pipeline bubble 7 %" of a step.
std::string binds_text(const Priced& p) {
  const auto [name, seconds] = binding_toll(p.time);
  return fmt::format("{} {:.0f} %", name, 100 * seconds / p.time.total);
}

// found: what was booked and simulated of it; null: nothing.
std::string row_text(const SearchRequest& q, const Priced& p, const Confirmed* found, bool with_found) {
  std::string s = fmt::format("{:8.3f} s ", p.time.total);
  const bool booked = found && found->booked;
  if (with_found)
    s += fmt::format("{:>10} ", found && found->step_s > 0 ? fmt::format("{:.3f} s", found->step_s) : "-");
  s += fmt::format("{:5.1f} % {:7.1f} GB ", 100 * mfu_of(q, p), p.memory.total / kShownGiga);
  if (with_found)
    s += fmt::format("{:>10} ", booked ? fmt::format("{:.1f} GB", found->bytes / kShownGiga) : "-");
  s += fmt::format("{:9} ", cost_text(q, p));
  if (q.by == RankBy::loss) s += fmt::format("{:>11} {:6} ", loss_hours(p), p.layout.global);
  if (q.gpus.size() > 1) s += fmt::format("{:6} ", p.layout.gpus);
  return s + fmt::format("{:28} ", binds_text(p)) + text_of(p) + "\n";
}

std::string head_text(const SearchRequest& q, bool with_found) {
  std::string s = fmt::format("{:>10} ", q.software.ordered() ? "at least" : "step");
  if (with_found) s += fmt::format("{:>10} ", "replayed");
  s += fmt::format("{:>7} {:>10} ", "MFU", "memory");
  if (with_found) s += fmt::format("{:>10} ", "booked");
  s += fmt::format("{:9} ", q.price > 0 ? "cost/1e9" : "GPU-h/1e9");
  if (q.by == RankBy::loss) s += fmt::format("{:>11} {:6} ", "to the loss", "batch");
  if (q.gpus.size() > 1) s += fmt::format("{:>6} ", "GPUs");
  return s + fmt::format("{:28} ", "beside products") + "layout\n";
}

double over_bytes(const SearchRequest& q, const Refused& no) {
  return no.bytes - q.figures.memory * q.memory_share;
}

std::string why_text(const SearchRequest& q, const SearchResult& r, const SearchWhy& w) {
  const Priced& best = w.best;
  std::string s = "\nwhere the best layout's step goes";
  s += best.layout == r.best.front().layout
           ? ":\n"
           : fmt::format(", of those in closed form ({}):\n", text_of(best.layout));
  for (const auto& [name, seconds] : tolls_of(best.time))
    if (std::abs(seconds) >= 0.0005 * best.time.total)
      s += fmt::format("  {:24} {:9.3f} s {:5.1f} %\n", name, seconds, 100 * seconds / best.time.total);
  s += fmt::format("beside products it is bound by {}: {:.3f} s a step\n", w.binds, w.binds_s);
  if (w.runner_up.token_s > 0)
    s += fmt::format("next best division, {:.1f} % behind: {}\n", 100 * (w.runner_up.score / best.score - 1),
                     text_of(w.runner_up.layout));
  if (w.flips.empty()) s += "no figure or constant changed by up to 64 makes another division the best\n";
  constexpr size_t kShown = 6;
  for (size_t i = 0; i < std::min(kShown, w.flips.size()); i++) {
    const Flip& f = w.flips[i];
    s += fmt::format("{} x {:.3g}: the best is {}\n", f.what, f.factor, text_of(f.rival.layout));
  }
  if (w.with_memory.token_s > 0)
    s += fmt::format("with {:.1f} GB more memory a device, {:.1f} % better: {}\n",
                     (w.with_memory.memory.total - q.figures.memory * q.memory_share) / kShownGiga,
                     100 * (1 - w.with_memory.score / best.score), text_of(w.with_memory.layout));
  else
    s += "twice the memory makes nothing better\n";
  return s;
}

SearchJson layout_json(const SearchLayout& l) {
  return {{"tp", l.tp},
          {"pp", l.pp},
          {"dp", l.dp},
          {"cp", l.cp},
          {"ep", l.ep},
          {"order", order_of(l.nearest)},
          {"sequence", l.tp > 1},
          {"zero", l.zero},
          {"shard_group", l.shards},
          {"schedule", l.schedule},
          {"chunks", l.chunks},
          {"recompute", name_of(l.again)},
          {"offload", l.offload ? "state" : "none"},
          {"micro", l.micro},
          {"microbatches", l.microbatches()},
          {"global", l.global},
          {"gpus", l.gpus}};
}

SearchJson priced_json(const SearchRequest& q, const Priced& p, const Confirmed* found = nullptr) {
  const bool replayed = found && found->step_s > 0;
  const double step_s = replayed ? found->step_s : p.time.total, times = step_s / p.time.total;
  const double busy = p.time.total - p.time.bubble;
  const StepInterval interval = interval_of(q, p, found ? found->step_s : 0);
  SearchJson j = {{"layout", layout_json(p.layout)},
                  {"step_s", step_s},
                  {"replayed", replayed},
                  {"closed_form_s", p.time.total},
                  {"step_low_s", interval.low},
                  {"step_high_s", interval.high},
                  {"tokens_per_s_per_gpu", step_tokens(q, p.layout) / step_s / double(p.layout.gpus)},
                  {"mfu", mfu_of(q, p) / times},
                  {"bubble", busy > 0 ? p.time.bubble / p.time.total : 0},
                  {"memory",
                   {{"states", p.memory.states},
                    {"activations", p.memory.activations},
                    {"gradients", p.memory.gradients},
                    {"logits", p.memory.logits},
                    {"base", p.memory.base},
                    {"total", p.memory.total}}},
                  {"headroom", found && found->booked ? q.figures.memory - found->used() : p.headroom},
                  {"fits", true},
                  {"cost_per_1e9_tokens", p.cost * times * kPerTokens},
                  {"goodput", goodput_of(q, p.layout.gpus).share}};
  if (found && found->booked) j["memory"]["booked"] = found->bytes;
  if (q.by == RankBy::loss) j["seconds_to_loss"] = p.score;
  for (const Nearest n : orders_alike(p)) j["orders_alike"].push_back(order_of(n));
  SearchJson tolls;
  for (const auto& [name, seconds] : tolls_of(p.time)) tolls[name] = seconds;
  j["tolls_s"] = tolls;
  return j;
}

SearchJson refused_json(const SearchRequest& q, const SearchResult& r) {
  SearchJson all = SearchJson::array();
  for (size_t i = 0; i < kRefusals; i++) {
    const Refused& no = r.refused[i];
    if (no.divisions == 0 && no.candidates == 0) continue;
    SearchJson j = {{"why_rejected", text_of(Refusal(i))},
                    {"divisions", no.divisions},
                    {"candidates", no.candidates},
                    {"layout", layout_json(no.nearest)},
                    {"fits", false}};
    if (Refusal(i) == Refusal::memory)
      j["bytes"] = no.bytes, j["allowed_bytes"] = q.figures.memory * q.memory_share,
      j["over_bytes"] = over_bytes(q, no), j["at_least"] = q.software.taped() && !no.booked;
    all.push_back(j);
  }
  return all;
}

SearchJson why_json(const SearchRequest& q, const SearchWhy& w) {
  SearchJson j = {{"binds", w.binds}, {"binds_s", w.binds_s}, {"flips", SearchJson::array()}};
  if (w.runner_up.token_s > 0) j["runner_up"] = priced_json(q, w.runner_up);
  for (const Flip& f : w.flips)
    j["flips"].push_back({{"what", f.what}, {"factor", f.factor}, {"layout", layout_json(f.rival.layout)}});
  if (w.with_memory.token_s > 0) j["with_memory"] = priced_json(q, w.with_memory);
  return j;
}

SearchJson confirmed_json(const Confirmation& all) {
  SearchJson list = SearchJson::array();
  for (const Confirmed& c : all.looked_at) {
    SearchJson j = {{"layout", layout_json(c.priced.layout)},
                    {"step_s", c.priced.time.total},
                    {"memory", c.priced.memory.total},
                    {"simulated_s", nullptr},
                    {"booked_bytes", nullptr}};
    if (c.step_s > 0) j["simulated_s"] = c.step_s, j["bubble"] = c.bubble;
    if (!c.unsimulated.empty()) j["not_simulated"] = c.unsimulated;
    if (c.booked)
      j["booked_bytes"] = c.arena, j["pp_rank"] = c.pp, j["base"] = c.priced.memory.base, j["fits"] = c.fits;
    else
      j["not_confirmed"] = c.refused;
    list.push_back(j);
  }
  SearchJson j = {{"layouts", list},
                  {"dropped", all.dropped},
                  {"reordered", all.reordered},
                  {"seconds", all.seconds},
                  {"proven", all.proven}};
  if (!all.proven && all.next_score > 0) j["next_bound"] = all.next_score;
  return j;
}

std::string_view by_text(RankBy by) {
  return by == RankBy::step ? "step time" : by == RankBy::cost ? "cost of a token" : "time to a loss";
}

}  // namespace

std::string refused_text(const SearchRequest& q, const SearchResult& r) {
  std::string s;
  for (size_t i = 0; i < kRefusals; i++) {
    const Refused& no = r.refused[i];
    if (no.divisions == 0 && no.candidates == 0) continue;
    if (Refusal(i) == Refusal::memory) {
      // Tapes leave out holes of the arena and buffers that only a booking finds.
      s += fmt::format("  {}: {} candidates, and {} divisions in whole; nearest, {}{} over {}: {}\n",
                       text_of(Refusal(i)), count_text(no.candidates), count_text(no.divisions),
                       q.software.taped() && !no.booked ? "at least " : "", bytes_text(over_bytes(q, no)),
                       bytes_text(q.figures.memory * q.memory_share), text_of(no.nearest));
    } else {
      const std::string batch =
          q.globals.size() > 1 ? fmt::format(" with {} sequences", no.nearest.global) : "";
      s += fmt::format("  {}: {} divisions, such as {}{}\n", text_of(Refusal(i)), count_text(no.divisions),
                       division_text(no.nearest), batch);
    }
  }
  return s;
}

std::string layout_toml(const SearchLayout& l, bool to_host) {
  const RunSpec run = with_layout(RunSpec(), l, to_host);
  const LayoutSpec& o = run.layout;
  std::string s = fmt::format("[batch]\nglobal = {}\nmicro = {}\n\n[layout]\n", l.global, l.micro);
  for (const auto& [name, n] :
       {std::pair{"tp", o.tp}, {"pp", o.pp}, {"dp", o.dp}, {"cp", o.cp}, {"ep", o.ep}})
    s += fmt::format("{} = {}\n", name, n);
  s += fmt::format("order = \"{}\"\nsequence = {}\nzero = {}\n", o.order, o.sequence, o.zero);
  if (o.shard_group > 0) s += fmt::format("shard_group = {}\n", o.shard_group);
  s += fmt::format("schedule = \"{}\"\nchunks = {}\nrecompute = \"{}\"\noffload = \"{}\"\n", o.schedule,
                   o.chunks, o.recompute, o.offload);
  if (l.offload && to_host) s += fmt::format("offload_to = \"{}\"\n", o.offload_to);
  if (o.cp > 1) s += fmt::format("cp_method = \"{}\"\ncp_placement = \"{}\"\n", o.cp_method, o.cp_placement);
  return s;
}

std::string run_file_of(const SearchRequest& q, const SearchLayout& l) {
  if (!q.run) return layout_toml(l, q.disk_each_way);
  RunSpec run = with_layout(*q.run, l, q.disk_each_way);
  std::string s;
  if (!q.software.ordered())
    s += "# the step above is of other software; `trireme plan` forecasts trireme's own\n";
  for (const std::vector<Problem>& all : {problems_of(run), unsupported_of(run)})
    for (const Problem& p : all)
      s += fmt::format("# this version does not run it: {}: {}\n", p.keys.front(), p.text);
  if (q.by_rules) {
    const int64_t global = run.batch.global;
    ask_for_rules(run);
    run.batch.global = global;
  }
  return s + save_changed(run);
}

namespace {

std::string interval_text(const SearchRequest& q, const Priced& p, const Confirmed* found) {
  std::string s;
  if (q.software.ordered()) s += "as trireme itself overlaps, which no published run was compared with\n";
  const StepInterval i = interval_of(q, p, found ? found->step_s : 0);
  return s + fmt::format(
                 "80 % of published runs took {:.2f} to {:.2f} of a forecast; from the least to the largest "
                 "forecast "
                 "of the first, that is {:.3f} to {:.3f} s\n",
                 q.low, q.high, i.low, i.high);
}

}  // namespace

std::string asked_text(const SearchRequest& q, const SearchResult& r, const SearchWhy* w,
                       const std::vector<FlipPoint>* flips) {
  return (w ? why_text(q, r, *w) : "") + (flips ? flips_text(*flips) : "");
}

std::string search_text(const SearchRequest& q, const SearchResult& r, const SearchWhy* w,
                        const Confirmation* confirmed, const std::vector<FlipPoint>* flips) {
  const Goodput g = goodput_of(q, q.gpus.back());
  std::string s = fmt::format("{} on {}{}, {}{} sequences of {} tokens a step\n", q.name,
                              q.gpus.size() > 1 ? "up to " : "", devices_text(q),
                              q.globals.size() > 1 ? "up to " : "", q.globals.back(), q.seq);
  s += fmt::format("goodput {:.2f} %: a failure every {:.1f} h, a save every {:.0f} s, {} spare machine{}\n",
                   100 * g.share, g.mtbf_s / 3600, g.interval_s, g.spares, g.spares == 1 ? "" : "s");
  if (!q.curve.empty()) s += q.curve + "\n";
  if (!q.note.empty()) s += q.note + "\n";
  if (!q.constants.empty()) s += q.constants + "\n";
  s += fmt::format("{}, {} candidates: {} fit{}; {:.2f} s, {} candidates a second on one core\n",
                   r.divisions_seen == 1 ? "1 division" : count_text(r.divisions_seen) + " divisions",
                   count_text(r.candidates), count_text(r.fits),
                   r.unweighed > 0 ? ", " + count_text(r.unweighed) + " are too slow to weigh" : "",
                   r.seconds, count_text(int64_t(r.rate())));
  s += refused_text(q, r);
  if (confirmed) s += confirmed_text(q, *confirmed);
  if (r.best.empty()) {
    s += "nothing fits\n";
    if (q.software.ordered() && q.disk == 0)
      s += "layouts whose optimizer state waits in the host's memory or on the disk were not searched: a "
           "cluster "
           "file that says host_bandwidth or disk_bandwidth (--cluster configs/cluster/h100-sxm-8.toml) has "
           "them\n";
    return s;
  }
  if (!r.alone.empty()) {
    const Confirmed* found = confirmed ? confirmed->of(r.best.front().layout) : nullptr;
    s += alone_text(r.alone, found && found->step_s > 0 ? found->step_s : r.best.front().time.total) + "\n";
  }
  s += fmt::format("\nthe best, by {}", by_text(q.by));
  if (q.by == RankBy::loss) s += fmt::format(" of {:.3f}", q.loss);
  s += "\n" + head_text(q, confirmed);
  const auto row = [&](const Priced& p) {
    return row_text(q, p, confirmed ? confirmed->of(p.layout) : nullptr, confirmed);
  };
  for (const Priced& p : r.best) s += row(p);
  if (confirmed)
    s +=
        q.software.ordered()
            ? "at least: a bound of the replayed step; -: not replayed or not booked; ranked by the replayed "
              "step, then by the bound\n"
            : "-: not booked or not replayed; ranked by the replayed step, then by the closed form's\n";
  s += interval_text(q, r.best.front(), confirmed ? confirmed->of(r.best.front().layout) : nullptr);
  const std::vector<size_t> listed = listed_of(r, confirmed);
  s += fmt::format("\nPareto front of time, cost and memory left: {} of {}\n", listed.size(), r.front.size());
  for (const size_t i : listed) s += row(r.front[i]);
  if (r.front_cut > 0)
    s += fmt::format("{}{} more take over {:g} times the best one's time\n",
                     r.unweighed > 0 ? "at least " : "", count_text(r.front_cut), kFrontTimes);
  s += asked_text(q, r, w, flips);
  s += "\nthe best, as a run file has it:\n" + run_file_of(q, r.best.front().layout);
  return s;
}

std::string search_json(const SearchRequest& q, const SearchResult& r, const SearchWhy* w,
                        const Confirmation* confirmed, const std::vector<FlipPoint>* flips) {
  SearchJson j;
  if (!q.constants.empty()) j["constants"] = q.constants;
  if (!q.note.empty()) j["note"] = q.note;
  const auto found = [&](const Priced& p) { return confirmed ? confirmed->of(p.layout) : nullptr; };
  j["best"] = r.best.empty() ? SearchJson() : priced_json(q, r.best.front(), found(r.best.front()));
  if (!r.best.empty())
    add_costs(j["best"], q, costs_of(q, r.best.front().layout, j["best"]["step_s"].get<double>()));
  if (!r.best.empty()) j["best"]["toml"] = run_file_of(q, r.best.front().layout);
  if (!r.alone.empty()) j["alone"] = json_of(r.alone);
  j["candidates"] = SearchJson::array();
  for (const Priced& p : r.best) j["candidates"].push_back(priced_json(q, p, found(p)));
  for (const auto& no : refused_json(q, r)) j["candidates"].push_back(no);
  j["front"] = SearchJson::array();
  j["front_cut"] = r.front_cut;
  for (const Priced& p : r.front) {
    const Confirmed* c = found(p);
    SearchJson one = priced_json(q, p, c);
    one["confirmed"] = c && c->booked;
    if (c && c->booked) one["booked_bytes"] = c->arena;
    if (c && c->step_s > 0) one["simulated_s"] = c->step_s;
    j["front"].push_back(one);
  }
  j["rejected"] = SearchJson::array();
  for (const SearchResult::Rejected& no : r.rejected) {
    SearchJson one = {{"division", division_text(no.layout)},
                      {"gpus", no.layout.gpus},
                      {"global", no.layout.global},
                      {"why_rejected", text_of(no.why)}};
    if (no.bytes > 0)
      one["bytes"] = no.bytes, one["over_bytes"] = no.bytes - q.figures.memory * q.memory_share,
      one["at_least"] = no.at_least;
    j["rejected"].push_back(one);
  }
  j["searched"] = {
      {"divisions", r.divisions_seen}, {"candidates", r.candidates}, {"fit", r.fits},
      {"not_weighed", r.unweighed},    {"seconds", r.seconds},       {"candidates_per_s", r.rate()}};
  if (confirmed) j["confirmed"] = confirmed_json(*confirmed);
  if (w) j["why"] = why_json(q, *w);
  if (flips) j["flips"] = SearchJson::parse(flips_json(*flips));
  return j.dump(2, ' ', false, SearchJson::error_handler_t::replace) + "\n";
}

std::string front_svg(const SearchRequest& q, const SearchResult& r) {
  Chart c{
      .title = fmt::format("{} on {} x {}: what memory left costs in time", q.name, q.gpus.back(), q.device),
      .x = {.title = "memory left on a device, GB"},
      .y = {.title = q.by == RankBy::loss ? "days to the loss, failures included"
                                          : "seconds of 1e9 tokens, failures included",
            .from_zero = false}};
  const double unit = q.by == RankBy::loss ? 1.0 / 86400 : kPerTokens;
  for (const int64_t gpus : q.gpus) {
    ChartSeries s{.name = fmt::format("{} devices", gpus), .line = false};
    for (const Priced& p : r.front)
      if (p.layout.gpus == gpus)
        s.points.push_back({p.headroom / kShownGiga, seconds_of(q, p) * unit, text_of(p.layout)});
    std::reverse(s.points.begin(), s.points.end());  // fastest first: least memory left first, as a rule
    if (!s.points.empty()) c.series.push_back(std::move(s));
  }
  return svg_of(c);
}

}  // namespace trireme
