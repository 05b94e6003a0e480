#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/progress.h"
#include "base/shell_word.h"
#include "cost/checkpoint_interval.h"
#include "report/diagnose.h"
#include "report/report.h"
#include "report/sections.h"
#include "spec/toml.h"

namespace trireme {
namespace {

using nlohmann::json;

json terms_of(const Difference& d) {
  json terms = json::array();
  for (const Term& t : d.terms) terms.push_back({{"name", t.name}, {"value", number_or_null(t.value)}});
  return terms;
}

json json_of(const Difference& d) {
  json j = {{"forecast", number_or_null(d.forecast)},
            {"measured", number_or_null(d.measured)},
            {"terms", terms_of(d)}};
  j["note"] = d.note.empty() ? json(nullptr) : json(d.note);
  return j;
}

json step_time(const ReportInput& in, const Difference& d) {
  json j = json_of(d);
  std::vector<double> all;
  for (const StepLine* s : in.record.timed()) all.push_back(s->step_s);
  std::sort(all.begin(), all.end());
  const auto at = [&](double share) {
    return all.empty() ? kNoNumber : all[size_t(share * double(all.size() - 1))];
  };
  j["low"] = number_or_null(at(0.1));
  j["high"] = number_or_null(at(0.9));
  j["bound"] = number_or_null(in.record.forecast_number("roof_s"));
  return j;
}

json tolls(const std::vector<Toll>& all) {
  json out = json::array();
  for (const Toll& t : all) {
    json j = json_of(t.difference);
    j["toll"] = t.name;
    j["unit"] = t.unit;
    out.push_back(j);
  }
  return out;
}

std::string state_of(const RunRecord& r) {
  if (r.locked) return "running";
  const RunEvent* end = nullptr;
  for (const RunEvent& e : r.events)
    if (starts(e) || ends(e)) end = &e;
  if (end && end->kind == "failure") return "failed";
  const bool all = r.run && !r.steps.empty() && r.steps.back().step >= r.run->train.steps;
  return all ? "finished" : "stopped";
}

json headline(const ReportInput& in, const MachineFacts& m, const MeasuredGoodput& g) {
  const RunRecord& r = in.record;
  json out = json::array();
  const auto add = [&](const char* label, std::string value, std::string note = "") {
    if (!value.empty()) out.push_back({{"label", label}, {"value", value}, {"note", note}});
  };
  const std::vector<const StepLine*> steps = r.timed();
  if (r.run) {
    const double parameters = r.forecast_number("parameters");
    add("model", fmt::format("{}, {}{}", r.run->model.arch, counted(r.run->model.layers, "layer"),
                             known(parameters) ? ", " + human_count(parameters) + " parameters" : ""));
  }
  add("machine", m.device.empty() ? "" : fmt::format("{} of {}", counted(m.ranks, "rank"), m.device),
      m.interconnect);
  if (!r.steps.empty())
    add("progress",
        fmt::format("step {}{}", r.steps.back().step, r.run ? fmt::format(" of {}", r.run->train.steps) : ""),
        state_of(r));
  double loss = kNoNumber, eval = kNoNumber;
  for (const StepLine& s : r.steps) {
    if (known(s.loss)) loss = s.loss;
    if (known(s.eval_loss)) eval = s.eval_loss;
  }
  if (known(loss))
    add("loss", fmt::format("{:.4f}", loss), known(eval) ? fmt::format("held-out {:.4f}", eval) : "");
  const auto scored =
      std::find_if(r.steps.rbegin(), r.steps.rend(), [](const StepLine& s) { return !s.tasks.empty(); });
  if (scored != r.steps.rend()) {
    std::string scores;
    for (const auto& [name, score] : scored->tasks)
      scores += fmt::format("{}{} {:.4f}", scores.empty() ? "" : ", ", name, score);
    add("tasks", scores, fmt::format("step {}", scored->step));
  }
  const double speed = median_of(steps, &StepLine::tokens_per_s), mfu = median_of(steps, &StepLine::mfu);
  if (known(speed))
    add("speed", human_count(speed) + " tokens/s",
        known(mfu) && mfu > 0 ? fmt::format("MFU {:.1f} %", 100 * mfu) : "");
  const double step = median_of(steps, &StepLine::step_s), forecast = r.forecast_number("step_s");
  if (known(step))
    add("step time", human_seconds(step),
        known(forecast) && forecast > 0
            ? fmt::format("forecast {}, {:+.1f} %", human_seconds(forecast), 100 * (step / forecast - 1))
            : "");
  int64_t peak = 0;
  for (const StepLine& s : r.steps) peak = std::max(peak, s.peak_total);
  if (peak > 0) add("memory", human_bytes(peak), "peak of the rank with the most");
  if (g.wall_s > 0) {
    const double hours = g.wall_s / 3600 * double(m.ranks);
    add("time", human_seconds(g.wall_s),
        m.price_per_hour > 0
            ? fmt::format("{:.2f} at {:.2f} per device-hour", hours * m.price_per_hour, m.price_per_hour)
            : fmt::format("goodput {:.1f} %", 100 * g.share()));
  }
  return out;
}

json checkpoints(const ReportInput& in) {
  const RunRecord& r = in.record;
  json j = {{"saves", json::array()}};
  const SaveCosts costs = save_costs(r);
  // A save stalls the step after it. Its write ends in a later one; writes end in the order of their saves.
  size_t written = 0;
  const auto add = [&](double stall, double write, int64_t step) {
    if (known(stall)) j["saves"].push_back({{"step", step}, {"stall_s", stall}, {"write_s", nullptr}});
    if (known(write) && written < j["saves"].size()) j["saves"][written++]["write_s"] = write;
  };
  for (const StepLine& s : r.steps) {
    add(s.stall_s, s.write_s, s.step - 1);
    add(s.last_stall_s, s.last_write_s, s.step);
  }
  j["stall_share"] = number_or_null(costs.steps_s + costs.stall_s > 0 ? costs.share() : kNoNumber);
  j["cadence"] = nullptr;
  j["best_cadence"] = nullptr;
  j["bytes"] = r.checkpoint_bytes > 0 ? json(r.checkpoint_bytes) : json(nullptr);
  if (!r.run) return j;
  const CountOrAuto& every = r.run->train.checkpoint_every;
  j["cadence"] = every.automatic    ? "auto"
                 : every.count == 0 ? "at the end"
                                    : fmt::format("every {} steps", every.count);
  const double step = median_of(r.timed(), &StepLine::step_s);
  if (costs.saves > 0 && known(step) && step > 0) {
    const double mtbf = (in.cluster ? *in.cluster : ClusterSpec()).mtbf_s(r.run->world());
    const double interval = daly_interval(costs.stall_median, mtbf);
    j["best_cadence"] = fmt::format("every {} steps ({} between saves)",
                                    std::max<int64_t>(1, int64_t(interval / step)), human_seconds(interval));
  }
  return j;
}

json events(const RunRecord& r) {
  json out = json::array();
  bool open = false;
  for (const RunEvent& e : r.events) {
    if (e.kind == "clock") continue;
    if (starts(e) && open) {  // that launch was killed: the last line of its metrics remains
      const auto step = e.all.find("had_step"), time = e.all.find("had_time");
      out.push_back({{"time", time != e.all.end() && time->is_number() ? json(time_text(time->get<double>()))
                                                                       : json(nullptr)},
                     {"step", step != e.all.end() && step->is_number() ? *step : json(nullptr)},
                     {"kind", "failure"},
                     {"text", "the process ended without a word; its last step"}});
    }
    if (starts(e) || ends(e)) open = starts(e);
    const auto text = e.all.find("text");
    out.push_back({{"time", time_text(e.time)},
                   {"step", e.step >= 0 ? json(e.step) : json(nullptr)},
                   {"kind", e.kind},
                   {"text", text != e.all.end() && text->is_string() ? *text : json("")}});
  }
  for (const json& s : r.spikes) {
    const std::string action =
        s.contains("action") && s["action"].is_string() ? s["action"].get<std::string>() : "";
    out.push_back({{"time", nullptr},
                   {"step", s.contains("step") && s["step"].is_number() ? s["step"] : json(nullptr)},
                   {"kind", action.starts_with("rolled back") ? "rollback" : "spike"},
                   {"text", action}});
  }
  return out;
}

json goodput(const MeasuredGoodput& g) {
  json lost = json::array();
  for (const LostTime& l : g.lost)
    lost.push_back(
        {{"cause", l.cause}, {"s", l.seconds}, {"share", g.wall_s > 0 ? l.seconds / g.wall_s : 0}});
  return {{"wall_s", g.wall_s},
          {"useful_s", g.useful_s},
          {"share", g.share()},
          {"lost", lost},
          {"why_not", g.why_not.empty() ? json(nullptr) : json(g.why_not)}};
}

json record_json(const std::vector<RecordRow>& rows) {
  json out = json::array();
  for (const RecordRow& r : rows) out.push_back({{"key", r.key}, {"value", r.value}, {"source", r.source}});
  return out;
}

// A folder for the run with the change: "runs/a-micro-8".
std::string changed_folder(const fs::path& folder, const Diagnosis& d) {
  std::string name = folder.string() + "-" + d.key.substr(d.key.find('.') + 1) + "-";
  for (char c : d.to)
    if (c != '"') name += std::isalnum(uint8_t(c)) || c == '.' || c == '-' ? c : '_';
  return name;
}

json advice_of(const Diagnosis& d, const ReportInput& in, double step_s) {
  json j = {{"id", d.id},
            {"title", d.title},
            {"gain_share", d.gain_share},
            {"number", d.number},
            {"evidence", d.evidence},
            {"gain_s", number_or_null(d.gain_share * step_s)},
            {"sure", d.measured ? "measured" : "estimated"}};
  j["key"] = d.key.empty() ? json(nullptr) : json(d.key);
  j["from"] = d.from;
  j["to"] = d.to;
  j["command"] = nullptr;
  // A value that a key can have has no spaces, or is quoted.
  if (!d.key.empty() && (d.to.find(' ') == d.to.npos || d.to.front() == '"'))
    j["command"] =
        fmt::format("trireme train {} --set {} --set {}",
                    shell_word((in.record.folder / "plan.toml").string()), shell_word(d.key + "=" + d.to),
                    shell_word("train.dir=" + toml_string(changed_folder(in.record.folder, d))));
  return j;
}

void add_advice(json& j, const ReportInput& in) {
  j["advice"] = json::array();
  j["checked"] = json::array();
  const double step = median_of(in.record.timed(), &StepLine::step_s);
  for (const Diagnosis& d : diagnose(in)) {
    j["checked"].push_back({{"id", d.id}, {"title", d.title}, {"found", d.found}, {"number", d.number}});
    if (d.found) j["advice"].push_back(advice_of(d, in, step));
  }
}

}  // namespace

json run_row(const fs::path& folder) {
  const RunRecord r = read_run_folder(folder);
  json j = {{"folder", folder.string()},
            {"name", r.folder.filename().string()},
            {"state", state_of(r)},
            {"step", r.steps.empty() ? 0 : r.steps.back().step},
            {"steps", r.run ? json(r.run->train.steps) : json(nullptr)},
            {"loss", r.steps.empty() ? json(nullptr) : number_or_null(r.steps.back().loss)},
            {"tokens_per_s", r.steps.empty() ? json(nullptr) : number_or_null(r.steps.back().tokens_per_s)},
            {"updated", r.changed > 0 ? json(time_text(r.changed)) : json(nullptr)}};
  return j;
}

ReportInput read_report_input(const fs::path& folder) {
  ReportInput in;
  in.record = read_run_folder(folder);
  in.trace = read_traces(in.record);
  return in;
}

json report_json(const ReportInput& in) {
  const RunRecord& r = in.record;
  const MachineFacts m = machine_facts(r, in.trace, in.cluster ? &*in.cluster : nullptr);
  const MeasuredGoodput g = measured_goodput(r);
  const std::vector<RecordRow> record = systems_record(in, m, g);
  json j = {{"version", 1},
            {"kind", "run"},
            {"folder", r.folder.string()},
            {"name", r.folder.filename().string()},
            {"state", state_of(r)}};
  j["headline"] = headline(in, m, g);
  add_advice(j, in);
  j["tolls"] = tolls(tolls_of(r, in.trace));
  j["step_time"] = step_time(in, step_difference(r, in.trace));
  j["comb"] = comb_json(in.trace);
  j["memory"] = memory_json(in, m);
  j["curves"] = curves_json(r);
  j["roofline"] = roofline_json(in, m);
  j["checkpoints"] = checkpoints(in);
  j["events"] = events(r);
  j["goodput"] = goodput(g);
  j["record"] = record_json(record);
  j["record_markdown"] = markdown_of(record);
  j["notes"] = r.notes;
  return j;
}

}  // namespace trireme
