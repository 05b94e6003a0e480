#include <fmt/format.h>

#include <map>

#include "base/json.h"
#include "published/score.h"

namespace trireme {
namespace {

using ReportJson = nlohmann::ordered_json;

std::string line_of(const ScoreStats& s) {
  std::string text = fmt::format(
      "{:<34} {:>5} {:>6.1f} {:>7.1f} {:>6.1f} {:>+6.1f} {:>7.0f} {:>8.1f} {:>8.1f}", s.source.substr(0, 34),
      s.rows, s.mape, s.median, s.p90, s.bias, s.coverage, s.control_mape, s.fitted_control_mape);
  if (s.sheets > 0) text += fmt::format(" {:>7.1f} {:>8.1f}", s.regret, s.ordered);
  return text + "\n";
}

std::string table_of(const Tables<ScoreStats>& t) {
  std::string text =
      fmt::format("{:<34} {:>5} {:>6} {:>7} {:>6} {:>6} {:>7} {:>8} {:>8} {:>7} {:>8}\n", "family", "rows",
                  "mean", "median", "p90", "bias", "in 80%", "control", "fitted", "regret", "ordered");
  for (const ScoreStats& s : t.families) text += line_of(s);
  return text + line_of(t.all);
}

std::string line_of(const VerdictStats& s) {
  return fmt::format("{:<34} {:>5} {:>6.1f} {:>7.1f} {:>6.1f} {:>16.1f} {:>5} {:>8.1f} {:>5} {:>8.1f}\n",
                     s.source.substr(0, 34), s.rows, s.right, s.risky, s.wrong, s.control_right, s.ran,
                     s.ran_refused, s.failed, s.failed_fits);
}

// Every row is in one of these counts.
std::string counted_text(const ScoreReport& r) {
  const size_t forecast = r.verdicts.size(), timed = r.rows.size();
  std::string text = fmt::format("{} rows: {} forecast and held against their step time",
                                 forecast + r.skipped.size(), timed);
  if (forecast > timed) {
    size_t tried = 0;
    for (const RowVerdict& v : r.verdicts) tried += v.ran || v.timed ? 0 : 1;
    text += fmt::format(", {} without one ({} of them ran out of memory: a verdict alone)", forecast - timed,
                        tried);
  }
  return text + fmt::format(", {} not forecast\n", r.skipped.size());
}

std::string rows_text(const ScoreReport& r) {
  std::string text;
  for (const ScoredRow& x : r.rows)
    text +=
        fmt::format("{:<60} {:>10.4g} s  forecast {:>10.4g} s ({:.4g} to {:.4g})  {:+.1f} %  {}\n", x.id,
                    x.measured, x.predicted, x.low, x.high, 100 * (x.predicted / x.measured - 1), x.verdict);
  for (const RowVerdict& v : r.verdicts)
    if (!v.timed)
      text += fmt::format("{:<60} {}, forecast {:.3g} to {:.3g} GB of {:.3g}: {}\n", v.id,
                          v.ran ? "no step time" : "out of memory", v.low / 1e9, v.high / 1e9, v.room / 1e9,
                          v.verdict);
  return text;
}

std::string skipped_text(const ScoreReport& r) {
  std::map<std::string, std::pair<int, std::string>> reasons;
  for (const SkippedRow& s : r.skipped) {
    auto& [count, first] = reasons[s.reason];
    if (count++ == 0) first = s.id;
  }
  std::string text;
  if (!r.skipped.empty()) text = fmt::format("{} rows are not forecast:\n", r.skipped.size());
  for (const auto& [reason, who] : reasons)
    text += fmt::format("  {}{}: {}\n", who.second,
                        who.first > 1 ? fmt::format(" and {} more", who.first - 1) : "", reason);
  if (!r.notes.empty())
    text +=
        fmt::format("{} rows lack or contradict something that their other numbers say:\n", r.notes.size());
  for (const SkippedRow& s : r.notes) text += fmt::format("  {}: {}\n", s.id, s.reason);
  return text;
}

ReportJson json_of(const ScoreStats& s) {
  return {{"source", s.source},
          {"rows", s.rows},
          {"mape", s.mape},
          {"median", s.median},
          {"p90", s.p90},
          {"bias", s.bias},
          {"coverage", s.coverage},
          {"control_mape", s.control_mape},
          {"fitted_control_mape", s.fitted_control_mape},
          {"sheets", s.sheets},
          {"regret", s.regret},
          {"pairs", s.pairs},
          {"ordered", s.ordered}};
}

ReportJson json_of(const VerdictStats& s) {
  return {{"source", s.source}, {"rows", s.rows},
          {"right", s.right},   {"risky", s.risky},
          {"wrong", s.wrong},   {"control_right", s.control_right},
          {"ran", s.ran},       {"ran_refused", s.ran_refused},
          {"failed", s.failed}, {"failed_fits", s.failed_fits}};
}

template <class Stats>
ReportJson tables_json(const Tables<Stats>& t) {
  ReportJson j = {
      {"all", json_of(t.all)}, {"sources", ReportJson::array()}, {"families", ReportJson::array()}};
  for (const Stats& s : t.sources) j["sources"].push_back(json_of(s));
  for (const Stats& s : t.families) j["families"].push_back(json_of(s));
  return j;
}

ReportJson rows_json(const std::vector<ScoredRow>& rows) {
  ReportJson j = ReportJson::array();
  for (const ScoredRow& x : rows)
    j.push_back({{"id", x.id},
                 {"source", x.source},
                 {"metric", x.metric},
                 {"predicted", x.predicted},
                 {"low", x.low},
                 {"high", x.high},
                 {"measured", x.measured},
                 {"verdict", x.verdict}});
  return j;
}

ReportJson verdicts_json(const std::vector<RowVerdict>& rows) {
  ReportJson j = ReportJson::array();
  for (const RowVerdict& v : rows)
    j.push_back({{"id", v.id},
                 {"source", v.source},
                 {"low", v.low},
                 {"high", v.high},
                 {"room", v.room},
                 {"ran", v.ran},
                 {"verdict", v.verdict}});
  return j;
}

ReportJson skipped_json(const std::vector<SkippedRow>& all) {
  ReportJson j = ReportJson::array();
  for (const SkippedRow& s : all) j.push_back({{"id", s.id}, {"source", s.source}, {"reason", s.reason}});
  return j;
}

}  // namespace

std::string score_text(const ScoreReport& r, bool rows) {
  std::string text =
      counted_text(r) + skipped_text(r) +
      "forecasts are the closed form's, with each row's software, site and recipe; search and simulate\n"
      "replay a layout, with the software and site that they are given\n\n";
  if (rows) text += rows_text(r) + "\n";
  text += fmt::format(
      "fits, risky or does not fit, of {} runs, percent; control: weights, gradients and optimizer alone\n"
      "{:<34} {:>5} {:>6} {:>7} {:>6} {:>16} {:>5} {:>8} {:>5} {:>8}\n",
      r.fits.all.rows, "family", "rows", "right", "risky", "wrong", "right by control", "ran", "refused",
      "oom", "\"fits\"");
  for (const VerdictStats& s : r.fits.families) text += line_of(s);
  text += line_of(r.fits.all);
  if (r.memory.all.rows > 0)
    text += fmt::format("\nmemory of {} runs, percent; control: the same; the rest as below\n{}",
                        r.memory.all.rows, table_of(r.memory));
  text += "\n";
  for (const bool experts : {false, true}) {
    const MeasuredRatios m = measured_ratios(r.rows, experts);
    if (m.low > 0)
      text += fmt::format("measured / forecast of 80 % of rows, {}: {:.2f} to {:.2f}\n",
                          experts ? "experts" : "dense", m.low, m.high);
  }
  text += fmt::format("step time of {} measured runs, percent; ", r.measured_rows);
  switch (r.leave_out) {
    case LeaveOut::publication:
      text += "constants fitted without any row of the row's publication";
      break;
    case LeaveOut::half:
      text += fmt::format(
          "constants fitted on half of each family's configurations, errors on\nthe other half, {} times",
          r.splits);
      break;
    case LeaveOut::nothing:
      text += "constants unchanged";
  }
  text += "; control: half of the peak; fitted: one constant of the same rows\n" + table_of(r.time);
  const SourceSummary s = summary_of(r.time.families);
  if (r.leave_out == LeaveOut::publication && s.sources > 0)
    text += fmt::format(
        "{} families of 5 rows or more: mean {:.1f}, median {:.1f}, {:.0f} % in their interval, below both "
        "controls {}; sheets: regret {:.1f}, ordered {:.1f}\n",
        s.sources, s.mape, s.median, s.coverage, s.below_both, s.regret, s.ordered);
  return text;
}

std::string score_json(const ScoreReport& r) {
  ReportJson j = tables_json(r.time);
  j["rows"] = rows_json(r.rows);
  for (const bool experts : {false, true}) {
    const MeasuredRatios m = measured_ratios(r.rows, experts);
    j["measured_ratios"][experts ? "experts" : "dense"] = {m.low, m.high};
  }
  j["memory"] = tables_json(r.memory), j["memory"]["rows"] = rows_json(r.memory_rows);
  j["fits"] = tables_json(r.fits), j["fits"]["rows"] = verdicts_json(r.verdicts);
  if (r.leave_out == LeaveOut::publication) {
    const SourceSummary all = summary_of(r.time.families);
    j["summary"] = {{"families", all.sources},       {"mape", all.mape},
                    {"median", all.median},          {"coverage", all.coverage},
                    {"below_both", all.below_both},  {"regret", all.regret},
                    {"ordered", all.ordered},        {"unseen_seconds", r.unseen_seconds},
                    {"unseen_bytes", r.unseen_bytes}};
  }
  j["skipped"] = skipped_json(r.skipped), j["notes"] = skipped_json(r.notes);
  return j.dump(1) + "\n";
}

}  // namespace trireme
