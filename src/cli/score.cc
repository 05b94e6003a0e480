// trireme score: forecasts held against a file of measured runs.
#include <algorithm>

#include "base/file.h"
#include "cli/cli.h"
#include "published/score.h"
#include "published/score_curves.h"

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

void score(ScoreRequest q) {
  q.file = q.files.front();
  std::vector<MeasuredRow> rows;
  for (const std::string& file : q.files) {
    const std::string text = read_text(file);
    if (is_microbench(text)) {
      if (q.files.size() > 1)
        bad_request("{}: curves of operations and collectives; give this file alone", file);
      return score_curve_file(q, text);
    }
    for (MeasuredRow& r : read_rows(text, file, shipped_catalog())) rows.push_back(std::move(r));
  }
  const ScoreConstants constants =
      q.constants.empty() ? shipped_constants() : parse_constants(read_text(q.constants), q.constants);
  if (!q.fit.empty() || !q.calibrate.empty()) {
    const std::string& out = q.fit.empty() ? q.calibrate : q.fit;
    std::vector<const MeasuredRow*> timed;
    for (const MeasuredRow& r : rows)
      if (r.skipped.empty() && r.step_s > 0) timed.push_back(&r);
    if (timed.empty()) bad_request("{}: no row has a step time that can be forecast", q.file);
    const Moves moves = q.fit.empty() ? Moves::sites_alone : Moves::all;
    write_text_atomic(out, save_constants(fit_constants(constants, timed, moves)));
    print_text("{}: constants {}fitted on {} rows of {}\n", out, q.fit.empty() ? "of sites " : "",
               timed.size(), q.file);
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
