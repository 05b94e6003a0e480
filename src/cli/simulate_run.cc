#include "cli/simulate_run.h"

#include <charconv>
#include <cmath>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "cli/plan_subject.h"
#include "cost/flops.h"
#include "plan/scaled_run.h"
#include "plan/score_catalog.h"
#include "sim/markup.h"
#include "sim/world_report.h"
#include "spec/run_schedule.h"
#include "trace/chrome_trace.h"

namespace trireme::cli {
namespace {

constexpr double kGiB = 1 << 30;

double number_of(std::string_view text, const std::string& all, std::string_view option,
                 std::string_view right) {
  double x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(x))
    bad_request("{}: \"{}\" is not {}", option, all, right);
  return x;
}
// "17=1.3": a whole number and what is said of it.
std::pair<int, double> pair_of(const std::string& text, char between, std::string_view option,
                               std::string_view right) {
  const size_t at = text.find(between);
  if (at == text.npos) bad_request("{}: \"{}\" is not {}", option, text, right);
  const std::string_view all = text;
  const double whole = number_of(all.substr(0, at), text, option, right);
  if (whole != std::floor(whole) || whole < 0 || whole > 1e9)
    bad_request("{}: \"{}\" is not {}", option, text, right);
  return {int(whole), number_of(all.substr(at + 1), text, option, right)};
}

Disturbance disturbance_of(const SimulateRunRequest& q) {
  constexpr double kMost = 1000;
  Disturbance d;
  for (const std::string& s : q.slow) {
    const auto [rank, by] = pair_of(s, '=', "--slow", "RANK=FACTOR, such as 17=1.3");
    if (!(by >= 1 / kMost && by <= kMost)) bad_request("--slow: {} is out of range; 0.001 to 1000", by);
    d.slow_ranks[rank] = by;
  }
  for (const std::string& s : q.slow_links) {
    const auto [node, share] = pair_of(s, '=', "--slow-link", "NODE=SHARE, such as 3=0.5");
    if (!(share >= 1 / kMost && share <= kMost))
      bad_request("--slow-link: {} is out of range; 0.001 to 1000", share);
    d.slow_links[node] = share;
  }
  return d;
}

// "tp=8 pp=16": keys of [layout]; micro and global of [batch], seq of [data]; or any key in full.
std::vector<std::string> sets_of_layout(const std::string& text) {
  std::vector<std::string> sets;
  std::istringstream words(text);
  for (std::string w; words >> w;) {
    const std::string key = w.substr(0, w.find('='));
    std::string full = key.find('.') == key.npos ? "layout." + key : key;
    if (key == "micro" || key == "global") full = "batch." + key;
    if (key == "seq") full = "data.seq_len";
    sets.push_back(full + w.substr(key.size()));
  }
  return sets;
}

RunSpec run_of_options(const SimulateRunRequest& q, ScaledRun& s) {
  const KnownShape* known = shipped_catalog().shape_named(q.model);
  RunSpec base;
  PlanSubject subject;
  subject.model = q.model;
  const SubjectModel model = model_of(subject);
  base.model = *model.shape;
  base.model.max_positions = 0;
  if (known) s.window = known->window, s.window_share = known->window_share;
  std::vector<std::string> sets = sets_of_layout(q.layout);
  sets.insert(sets.end(), q.run.sets.begin(), q.run.sets.end());
  return parse_run(save_run(base), "--layout", sets);
}

struct Subject {
  ScaledRun scaled;
  std::string title, device;
  double price_per_hour = 0, mtbf_hours = 0;
};

Subject subject_of(const SimulateRunRequest& q) {
  if (!q.run.file.empty() && !q.model.empty())
    bad_request("--model: {}; the run file {} has its own", q.model, q.run.file);
  if (!q.run.file.empty() && !q.layout.empty())
    bad_request("--layout: the run file {} has its own; --set layout.tp=... changes it", q.run.file);
  Subject s;
  ScaledRun& scaled = s.scaled;
  scaled.run = q.run.file.empty() ? run_of_options(q, scaled) : load_run(q.run.file, q.run.sets);
  const std::string cluster = q.cluster.empty() ? scaled.run.cluster.file : q.cluster;
  if (cluster.empty())
    bad_request("--cluster is required: a cluster file (.toml) or a device by name, such as H100");
  const SubjectDevice device = device_of(cluster);
  scaled.run = resolve(scaled.run, {.native_bf16 = device.figures.bf16 > 0});
  scaled.figures = device.figures;
  scaled.by = {.device = device.name, .software = q.software, .site = q.site};
  s.device = device.name, s.price_per_hour = device.price_per_hour, s.mtbf_hours = device.mtbf_hours;
  const RunSpec& run = scaled.run;
  const LayoutSpec& l = run.layout;
  std::string degrees;
  for (const auto& [name, n] :
       {std::pair{"tp", l.tp}, {"cp", l.cp}, {"ep", l.ep}, {"pp", l.pp}, {"dp", l.dp}})
    if (n > 1) degrees += fmt::format("{} {} ", name, n);
  s.title = fmt::format("{} on {} {}: {}{}{}, {} microbatches of {} x {} tokens, zero {}, recompute {}",
                        q.model.empty() ? q.run.file : q.model, run.world(), s.device, degrees, l.schedule,
                        l.chunks > 1 ? fmt::format(" x{}", l.chunks) : "", run.microbatches(),
                        run.batch.micro, run.data.seq_len, l.zero, l.recompute);
  return s;
}

void write_trace(const SimulateRunRequest& q, const Subject& s, const WorldReplay& all,
                 const std::vector<StepRow>& rows) {
  std::vector<Span> spans;
  std::set<int> ranks(q.trace_ranks.begin(), q.trace_ranks.end());
  if (ranks.empty())
    for (const StepRow& row : rows) ranks.insert(row.rank);
  for (int rank : ranks) {
    if (rank < 0 || size_t(rank) >= all.class_of.size())
      bad_request("--trace-ranks {}: ranks are 0 to {}", rank, all.class_of.size() - 1);
    const StepRow& row = rows[size_t(all.class_of[size_t(rank)])];
    for (const Span& span :
         step_spans(all.tapes[row.at], all.replay.ranks[row.at], row.memory, rank, all.replay.makespan))
      spans.push_back(span);
  }
  ChromeTraceFile(q.trace, {{"run", s.title}, {"machine", s.device}, {"simulated", "by trireme simulate"}})
      .write(spans);
}

struct Numbers {
  double step_s = 0, closed_s = 0, tokens_s = 0, mfu = 0, bubble = 0;
};
Numbers numbers_of(const ScaledRun& s, const WorldReplay& all, const std::vector<StepRow>& rows) {
  Numbers n;
  const StepCase c = step_case_of(s);
  n.step_s = double(all.replay.makespan) * 1e-9;
  n.bubble = bubble_of(rows);
  const std::string& kind = s.run.layout.schedule;
  if (kind == "1f1b" || kind == "gpipe" || kind == "interleaved")
    n.closed_s = step_time(c, s.figures, constants_of(s.by)).total;
  n.tokens_s = double(s.run.tokens_per_step()) / n.step_s;
  n.mfu = step_flops(c, false) / (double(c.gpus()) * s.figures.bf16 * n.step_s);
  return n;
}

std::string summary_text(const Numbers& n, const WorldReplay& all, const Disturbance& d) {
  const int64_t world = int64_t(all.class_of.size());
  std::string out = fmt::format("step       {}, {:.4g} tokens/s, MFU {:.1f} %", human_seconds(n.step_s),
                                n.tokens_s, 100 * n.mfu);
  if (n.closed_s > 0 && !d.any())
    out += fmt::format("; closed form (score's) {}, {:+.1f} %", human_seconds(n.closed_s),
                       100 * (n.step_s / n.closed_s - 1));
  out += fmt::format("\nbubble     {:.1f} % of a rank's own span, at most\n", 100 * n.bubble);
  out += all.all_ranks
             ? fmt::format("simulated  all {} ranks, in {} classes", world, all.classes.size())
             : fmt::format("simulated  {} classes, which stand for {} ranks", all.classes.size(), world);
  return out + fmt::format(": {} events in {} ({:.2f} million a second)\n", all.pieces,
                           human_seconds(all.seconds),
                           double(all.pieces) / std::max(all.seconds, 1e-9) * 1e-6);
}

nlohmann::ordered_json json_of(const Subject& s, const Numbers& n, const WorldReplay& all,
                               const std::vector<StepRow>& rows) {
  nlohmann::ordered_json j = {{"run", s.title},
                              {"ranks", all.class_of.size()},
                              {"step_s", n.step_s},
                              {"tokens_per_s", n.tokens_s},
                              {"mfu", n.mfu},
                              {"bubble", n.bubble},
                              {"classes", all.classes.size()},
                              {"events", all.pieces},
                              {"events_per_s", double(all.pieces) / std::max(all.seconds, 1e-9)}};
  if (n.closed_s > 0) j["closed_form_s"] = n.closed_s;
  for (const StepRow& r : rows) {
    nlohmann::ordered_json use;
    for (size_t u = 0; u < kUses; u++)
      if (r.use[u] > 0) use[std::string(name_of(Use(u)))] = double(r.use[u]) * 1e-9;
    j["groups"].push_back({{"first_rank", r.rank},
                           {"stage", r.pp},
                           {"ranks", r.ranks},
                           {"disturbed", r.disturbed},
                           {"seconds", use},
                           {"bubble", r.span.bubble()},
                           {"peak_bytes", r.peak}});
  }
  return j;
}

std::string page_of(const std::string& title, const std::string& text, const std::string& pictures) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<meta "
      "charset=\"utf-8\">\n<title>{0}</title>\n{2}<pre>{1}</pre>\n</html>\n",
      escaped(title), escaped(text), pictures);
}

}  // namespace

std::vector<CLI::Option*> SimulateRunRequest::add_to(CLI::App& verb) {
  run.add_to(verb, false);
  verb.get_option("RUN")->required(false);
  auto* const named =
      verb.add_option("--model", model, "a run without a file: a model by name (llama3-405B, ...)");
  verb.add_option(
      "--layout", layout,
      "with --model: keys of [layout], and micro, global, seq: \"tp=8 pp=16 dp=128 global=2048 seq=8192\"");
  verb.add_option("--cluster", cluster,
                  "a cluster file (.toml), or a device by name: H100, A100-80GB, ... (default: the run's)");
  verb.add_option("--software", software,
                  "whose measured constants price the step: nemo, llama3, ... (trireme score)");
  verb.add_option("--site", site, "and where: dgxc, llama3, ...");
  verb.add_option("--slow", slow, "a rank that computes so much slower: 17=1.3 (may be repeated)")
      ->take_all()
      ->type_name("RANK=FACTOR");
  verb.add_option("--slow-link", slow_links,
                  "a node whose link to the others has that share of its bandwidth: 3=0.5 (may be repeated)")
      ->take_all()
      ->type_name("NODE=SHARE");
  verb.add_flag("--all-ranks", all_ranks, "every rank is simulated, though others do the same");
  verb.add_option("--trace", trace, "file for the timeline (chrome://tracing, Perfetto, trireme inspect)");
  verb.add_option("--trace-ranks", trace_ranks, "of these ranks (default: one of each group)");
  verb.add_option("--memory-svg", memory_svg, "file to draw memory over time into");
  verb.add_option("--columns", columns, "of the comb in text")
      ->check(CLI::Range(10, 1000))
      ->capture_default_str();
  return {verb.get_option("RUN"), named};
}

void simulate_run(const SimulateRunRequest& q) {
  const Subject s = subject_of(q);
  World w = world_of(s.scaled);
  w.disturbed = disturbance_of(q);
  const WorldReplay all = replay_world(w, q.all_ranks);
  const std::vector<StepRow> rows = rows_of(w, all);
  const Numbers n = numbers_of(s.scaled, all, rows);
  constexpr size_t kMostRows = 40;
  const std::vector<StepRow> shown = chosen_rows(rows, kMostRows);
  const Comb comb = comb_of(shown, all.replay.makespan);
  std::string text = summary_text(n, all, w.disturbed) + rows_text(shown, all.replay.makespan);
  if (shown.size() < rows.size())
    text += fmt::format("({} more groups: --json has all)\n", rows.size() - shown.size());
  std::vector<MemoryRow> memory;
  for (const StepRow& r : shown) memory.push_back({r.name, r.memory});
  const auto memory_picture = [&] {
    return memory_svg(memory, all.replay.makespan, int64_t(s.scaled.figures.memory), s.title);
  };
  if (!q.svg.empty()) write_text_atomic(q.svg, comb_svg(comb, s.title));
  if (!q.memory_svg.empty()) write_text_atomic(q.memory_svg, memory_picture());
  if (!q.html.empty())
    write_text_atomic(q.html, page_of(s.title, text, comb_svg(comb, s.title) + memory_picture()));
  if (!q.trace.empty()) write_trace(q, s, all, rows);
  if (q.run.json) return fmt::print("{}\n", json_of(s, n, all, rows).dump(2));
  fmt::print("{}\n{}\n{}{}", s.title, text, comb_legend(), comb_text(comb, q.columns));
}

}  // namespace trireme::cli
