// trireme score: forecasts held against a file of measured runs.
#include <algorithm>
#include <iterator>
#include <set>

#include "base/counted.h"
#include "base/file.h"
#include "base/say.h"
#include "catalog/priced_by.h"
#include "cli/cli.h"
#include "published/score.h"
#include "published/score_curves.h"
#include "published/score_fit.h"

namespace trireme::cli {
namespace {

struct ScoreRequest {
  std::string file, constants, fit, calibrate, leave_out = "source";
  std::vector<std::string> files;
  bool json = false, rows = false, as_is = false;
  int splits = 5;
};

// Curves have no constants to fit here and no rows.
void score_curve_file(const ScoreRequest& q, const std::string& text) {
  const std::pair<const char*, bool> others[] = {{"--constants", !q.constants.empty()},
                                                 {"--fit", !q.fit.empty()},
                                                 {"--calibrate", !q.calibrate.empty()},
                                                 {"--as-is", q.as_is},
                                                 {"--rows", q.rows}};
  for (const auto& [option, given] : others)
    if (given)
      bad_request("{}: {} is of measured runs; this file has curves of collectives, give it alone or --json",
                  q.file, option);
  const CurveScore s = score_curves(text, q.file);
  print_text("{}", q.json ? to_json(s) : to_text(s));
}

// A file none of whose rows can be forecast has no score.
void refuse_unusable(const std::vector<MeasuredRow>& rows, const std::string& file) {
  if (rows.empty()) bad_request("{}: no rows", file);
  if (std::all_of(rows.begin(), rows.end(), [](const MeasuredRow& r) { return !r.skipped.empty(); }))
    bad_request("{}: none of {} rows can be forecast; the first, {}: {}", file, rows.size(), rows[0].id,
                rows[0].skipped);
}

// Notes each row of a file that a fit leaves out, and each step that is far from its forecast.
void note_doubtful(const std::string& file, const std::vector<MeasuredRow>& rows, const ScoreConstants& c) {
  constexpr double kFar = 3;  // no published step takes 3 times its forecast
  constexpr int kMostNotes = 5;
  int notes = 0;
  for (const MeasuredRow& r : rows) {
    const bool timed = r.skipped.empty() && r.step_s > 0;
    const double times = timed ? r.step_s / forecast_of(r, c.of(r)).middle : 1;
    if (timed && times < kFar && times > 1 / kFar) continue;
    if (++notes > kMostNotes) continue;
    if (timed)
      say("note: {}: {}: result.{}: a step of {:.4g} s is {:.3g} x its forecast; the fit takes it: is it in "
          "seconds, of one step?\n",
          file, r.id, r.metric, r.step_s, times);
    else
      say("note: {}: {} is left out: {}\n", file, r.id, r.skipped.empty() ? "no step time" : r.skipped);
  }
  if (notes > kMostNotes)
    say("note: {}: {} more such rows; `trireme score {} --as-is --rows` lists them\n", file,
        notes - kMostNotes, file);
}

// A calibration moves constants of sites alone: an unknown software would have none, here and in search.
void check_calibrated(const std::string& file, const std::vector<MeasuredRow>& rows, const ScoreConstants& c,
                      const std::string& out) {
  std::set<std::string> noted;
  for (const MeasuredRow& r : rows) {
    if (r.states_software) know_software(c, fmt::format("{}: {}: software", file, r.id), r.software);
    if (shipped_constants().fitted.contains("site:" + r.site) && noted.insert(r.site).second)
      say("note: {}: {}: site \"{}\" is of published runs: in {} its constants are replaced; a name of your "
          "own keeps both\n",
          file, r.id, r.site, out);
  }
}

void score(ScoreRequest q) {
  q.file = q.files.front();
  std::vector<MeasuredRow> rows;
  const ScoreConstants constants =
      q.constants.empty() ? shipped_constants() : parse_constants(read_text(q.constants), q.constants);
  for (const std::string& file : q.files) {
    const std::string text = read_text(file);
    if (is_microbench(text)) {
      if (q.files.size() > 1)
        bad_request("{}: curves of operations and collectives; give this file alone", file);
      return score_curve_file(q, text);
    }
    std::vector<MeasuredRow> read = read_rows(text, file, shipped_catalog());
    if (!q.calibrate.empty()) check_calibrated(file, read, constants, q.calibrate);
    if (!q.calibrate.empty() || !q.fit.empty()) note_doubtful(file, read, constants);
    std::move(read.begin(), read.end(), std::back_inserter(rows));
  }
  if (!q.fit.empty() || !q.calibrate.empty()) {
    const std::string& out = q.fit.empty() ? q.calibrate : q.fit;
    std::vector<const MeasuredRow*> timed;
    for (const MeasuredRow& r : rows)
      if (r.skipped.empty() && r.step_s > 0) timed.push_back(&r);
    if (timed.empty()) bad_request("{}: no row has a step time that can be forecast", q.file);
    const Moves moves = q.fit.empty() ? Moves::sites_alone : Moves::all;
    write_text_atomic(out, save_constants(fit_constants(constants, timed, moves)));
    print_text("{}: constants {}fitted on {} of {}\n", out, q.fit.empty() ? "of sites " : "",
               counted(timed.size(), "row"), q.file);
    return;
  }
  refuse_unusable(rows, q.file);
  ScoreOptions options{.splits = q.splits, .others = published_rows()};
  if (q.as_is)
    options.leave_out = LeaveOut::nothing;
  else if (q.leave_out == "half")
    options.leave_out = LeaveOut::half;
  const ScoreReport report = score_rows(rows, constants, options);
  print_text("{}", q.json ? score_json(report) : score_text(report, q.rows));
}

}  // namespace

void add_score(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "score",
      "holds forecasts against a file of measurements: step times of runs, beside what a constant would say, "
      "or curves of operations and collectives\n"
      "example: trireme score data/published_runs.json\n"
      "         trireme score data/published_microbench.json");
  auto q = std::make_shared<ScoreRequest>();
  verb->add_option("FILE", q->files,
                   "measured runs, or curves of operations and collectives, JSON (docs/score.md)")
      ->required();
  verb->add_option("--constants", q->constants, "constants of one's own instead of the shipped ones, JSON");
  auto* const fit = verb->add_option(
      "--fit", q->fit, "instead: fits the constants on all rows and writes them into this file");
  auto* const calibrate =
      verb->add_option("--calibrate", q->calibrate,
                       "instead: the same, moving constants of the rows' sites alone; two rows are enough");
  calibrate->excludes(fit);
  auto* const as_is =
      verb->add_flag("--as-is", q->as_is, "forecasts by the constants unchanged, nothing fitted");
  auto* const leave_out =
      verb->add_option(
              "--leave-out", q->leave_out,
              "rows that the fit does not see: source (all of the row's publication), half (of each family)")
          ->check(CLI::IsMember({"source", "half"}))
          ->capture_default_str()
          ->excludes(as_is);
  auto* const splits =
      verb->add_option("--splits", q->splits, "with --leave-out half: times that rows are halved")
          ->check(CLI::Range(1, 100))
          ->capture_default_str()
          ->excludes(as_is);
  auto* const rows = verb->add_flag("--rows", q->rows, "prints every row");
  auto* const json = verb->add_flag("--json", q->json, "prints JSON");
  for (CLI::Option* fitted : {fit, calibrate})  // they print one line and no score
    for (CLI::Option* of_a_score : {as_is, leave_out, splits, rows, json}) fitted->excludes(of_a_score);
  verb->callback([q] { score(*q); });
}

}  // namespace trireme::cli
