#include <fmt/format.h>

#include <algorithm>

#include "base/counted.h"
#include "base/progress.h"
#include "report/report.h"
#include "spec/batch_ramp.h"

namespace trireme {
namespace {

class Rows {
 public:
  void measured(std::string key, std::string value) { add(std::move(key), std::move(value), "measured"); }
  void stated(std::string key, std::string value) { add(std::move(key), std::move(value), "run file"); }
  void computed(std::string key, std::string value) { add(std::move(key), std::move(value), "computed"); }
  std::vector<RecordRow> rows;

 private:
  void add(std::string key, std::string value, const char* source) {
    if (!value.empty()) rows.push_back({std::move(key), std::move(value), source});
  }
};

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string layout_text(const LayoutSpec& l) {
  std::string s;
  for (const auto& [name, degree] :
       {std::pair("dp", l.dp), {"tp", l.tp}, {"pp", l.pp}, {"cp", l.cp}, {"ep", l.ep}})
    if (degree > 1) s += fmt::format("{}{} {}", s.empty() ? "" : ", ", name, degree);
  if (s.empty()) s = "one rank";
  if (l.zero > 0) s += fmt::format(", ZeRO {}", l.zero);
  if (l.pp > 1) s += ", schedule " + l.schedule;
  if (l.recompute != "none") s += ", recompute " + l.recompute;
  return s;
}

std::string precision_text(const PrecisionSpec& p) {
  std::string s = fmt::format("{} compute, {} gradients, {} moments", p.compute, p.grads, p.moments);
  return p.fp8 == "none" ? s : s + ", fp8 " + p.fp8;
}

std::string cadence(const TrainSpec& t) {
  if (t.checkpoint_every.automatic) return "auto (Daly's interval)";
  if (t.checkpoint_every.count == 0) return "at the end alone";
  return t.checkpoint_every.count == 1 ? "every step"
                                       : fmt::format("every {} steps", t.checkpoint_every.count);
}

void add_run(Rows& out, const RunSpec& run) {
  out.stated("effective batch", fmt::format("{} = {} tokens per step", ramp_text(run.batch),
                                            run.batch.global * run.data.seq_len));
  out.stated("microbatch", fmt::format("{} per replica, {} per step", counted(run.batch.micro, "sequence"),
                                       counted(run.microbatches(), "microbatch", "microbatches")));
  out.stated("sequence length", fmt::format("{} tokens", run.data.seq_len));
  out.stated("layout", layout_text(run.layout));
  out.stated("precision", precision_text(run.precision));
  out.stated("optimizer", run.optimizer.name);
  out.stated("checkpoint cadence", cadence(run.train));
}

void add_speed(Rows& out, const RunRecord& r) {
  const std::vector<const StepLine*> steps = r.timed();
  const double speed = median_of(steps, &StepLine::tokens_per_s);
  if (known(speed))
    out.measured("tokens per second",
                 fmt::format("{} (median of {})", human_count(speed), counted(steps.size(), "step")));
  const double step = median_of(steps, &StepLine::step_s);
  if (known(step)) out.measured("step time", human_seconds(step));
  const double mfu = median_of(steps, &StepLine::mfu), hfu = median_of(steps, &StepLine::hfu);
  if (known(mfu) && mfu > 0) out.computed("MFU", percent(mfu));
  if (known(hfu) && hfu > 0 && hfu != mfu) out.computed("HFU", percent(hfu));
  int64_t tokens = 0, peak = 0, skipped = 0;
  for (const StepLine& s : r.steps) {
    tokens += s.tokens;
    peak = std::max(peak, s.peak_total);
    skipped += s.skipped;
  }
  if (!r.steps.empty())
    out.measured("trained", fmt::format("{}, {} tokens", counted(r.steps.back().step, "step"),
                                        human_count(double(tokens))));
  if (peak > 0) out.measured("peak memory", human_bytes(peak) + " on the rank with the most");
  if (skipped > 0) out.measured("skipped steps", std::to_string(skipped));
}

void add_stalls(Rows& out, const RunRecord& r, const MeasuredGoodput& g) {
  const SaveCosts saves = save_costs(r);
  int64_t failures = 0, restarts = 0;
  // A launch fails once, whether it says so itself, its supervisor, or both.
  bool failed = false, open = false;
  for (const RunEvent& e : r.events) {
    if (starts(e)) {
      failures += open && !failed;  // killed: it wrote no end
      failed = false;
    }
    if (starts(e) || ends(e)) open = starts(e);
    restarts += e.kind == "resume";
    if (e.kind != "failure") continue;
    failures += !failed;
    failed = true;
  }
  if (saves.saves > 0)
    out.measured("checkpoint stalls",
                 fmt::format("{} in {}", human_seconds(saves.stall_s), counted(saves.saves, "save")));
  if (r.checkpoint_bytes > 0) out.measured("checkpoint size", human_bytes(r.checkpoint_bytes));
  if (r.events.empty()) return;
  out.measured("failures and restarts",
               fmt::format("{}, {}", counted(failures, "failure"), counted(restarts, "restart")));
  if (g.wall_s > 0)
    out.measured("goodput", fmt::format("{} of {}", percent(g.share()), human_seconds(g.wall_s)));
}

std::string cell(std::string text) {
  std::string out;
  for (char c : text) out += c == '|' ? std::string("\\|") : c == '\n' ? std::string(" ") : std::string(1, c);
  return out;
}

}  // namespace

std::vector<RecordRow> systems_record(const ReportInput& in, const MachineFacts& m,
                                      const MeasuredGoodput& g) {
  const RunRecord& r = in.record;
  Rows out;
  if (r.run) {
    const ModelSpec& model = r.run->model;
    const double parameters = r.forecast_number("parameters");
    out.stated("model",
               fmt::format("{}, {}, hidden {}{}", model.arch, counted(model.layers, "layer"), model.hidden,
                           known(parameters) ? ", " + human_count(parameters) + " parameters" : ""));
  }
  if (!m.device.empty()) out.measured("device", fmt::format("{} of {}", counted(m.ranks, "rank"), m.device));
  if (!m.start.is_null()) out.measured("nodes", std::to_string(m.nodes));
  out.computed("interconnect", m.interconnect);
  if (r.run) add_run(out, *r.run);
  add_speed(out, r);
  add_stalls(out, r, g);
  std::string versions;
  for (const auto& [name, version] : m.versions)
    versions += (versions.empty() ? "" : ", ") + name + " " + version;
  out.measured("software", versions);
  if (const RunEvent* start = r.last_start()) out.measured("last started", time_text(start->time) + " UTC");
  return out.rows;
}

std::string markdown_of(const std::vector<RecordRow>& rows) {
  std::string out = "| what | value | source |\n|---|---|---|\n";
  for (const RecordRow& r : rows)
    out += fmt::format("| {} | {} | {} |\n", cell(r.key), cell(r.value), cell(r.source));
  return out;
}

}  // namespace trireme
