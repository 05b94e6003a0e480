// trireme report RUN: what a run did, from what it wrote down, against what was forecast.
#include "report/report.h"

#include "base/file.h"
#include "base/say.h"
#include "catalog/cluster_device.h"
#include "cli/report_page.h"
#include "cli/scale.h"
#include "cli/try_change.h"
#include "forecast/forecast.h"
#include "report/compare.h"
#include "report/price_plan.h"
#include "spec/run_schedule.h"

namespace trireme::cli {

ReportInput report_input(const fs::path& folder) {
  ReportInput in = read_report_input(folder);
  if (!in.record.run) return in;
  try {
    in.cluster = known_cluster_of(*in.record.run);
  } catch (const Error& e) {
    in.record.notes.push_back(fmt::format("the run's cluster file is not read: {}", e.what()));
  }
  if (!in.cluster) return in;
  in.price = [plan = folder / "plan.toml"](std::span<const std::string> sets) -> std::optional<PricedRun> {
    try {
      const std::optional<RunSpec> run = changed_plan(plan, sets);
      const std::optional<ClusterSpec> cluster = run ? known_cluster_of(*run) : std::nullopt;
      if (!cluster) return std::nullopt;
      return price_plan(*run, *cluster, rank_threads_of(*run));
    } catch (const Error&) {
      return std::nullopt;
    }
  };
  return in;
}

namespace {

struct ReportRequest {
  PageRequest page;
  std::vector<std::string> runs;
  std::string cluster;
  bool json = false, markdown = false, tries = false;
};

constexpr double kTrySeconds = 60;  // for steps with and without the change

// The same run as planned on another cluster.
ReportInput planned_on(const ReportInput& real, const std::string& file) {
  if (!real.record.run) bad_request("--cluster: {} has no plan.toml that reads", real.record.folder.string());
  RunSpec run = *real.record.run;
  run.cluster.file = file;
  const ClusterSpec cluster = cluster_called(file, run.world());
  if (has_own_devices(cluster)) run.train.device = "cuda";
  const Forecast f = forecast(run, schedule_of(run), cluster, rank_threads_of(run));
  ReportInput planned;
  planned.bound = !f.expected;
  planned.record.folder = cluster.name;
  planned.record.forecast = nlohmann::json::parse(to_json(run, f))["candidates"][0];
  planned.record.run = run;
  planned.trace.why_not = "it is a plan";
  planned.cluster = cluster;
  return planned;
}

// Writes the page, then prints the report: text alone has a page by itself, in `folder`.
void print(const ReportRequest& request, const nlohmann::json& j, const std::string& text,
           const fs::path& folder) {
  const bool text_alone = !request.json && !request.markdown;
  const fs::path page = write_page(request.page, text_alone ? folder : "", j);
  if (request.json)
    print_text("{}\n", j.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    print_text("{}", text);
  if (!page.empty()) say("page: {} (open it in a browser)\n", page.string());
}

// Tries what promises most, and notes the result in the run's events.
void try_best(const fs::path& folder, const ReportInput& in) {
  const std::vector<Diagnosis> all = diagnose(in);
  const auto best = std::find_if(all.begin(), all.end(), [](const Diagnosis& d) { return set_of(d); });
  if (best == all.end()) {
    say("nothing to try: no diagnosis names a key that changes single steps\n");
    return;
  }
  const std::string set = *set_of(*best);
  say("trying {}: steps with it and without, by turns, about {:.0f} s\n", set, kTrySeconds);
  const TriedChange tried = try_change(folder, {set}, kTrySeconds);
  const std::string text = tried_text(tried, best->gain_share);
  say("{}\n", text);
  keep_tried(folder, tried, text);
}

void report(const ReportRequest& request) {
  const std::string& first = request.runs.front();
  if (request.runs.size() == 1 && is_ladder(first)) {
    if (request.markdown || request.tries || request.page.follow || !request.cluster.empty())
      bad_request(
          "{} is a ladder: --markdown, --try, --follow and --cluster are for runs, such as {}/runs/s1-run-1",
          first, first);
    return report_ladder(first, request.page.out, request.json);
  }
  if (request.tries) {
    if (request.runs.size() > 1) bad_request("--try takes one run; {} are given", request.runs.size());
    try_best(first, report_input(first));
  }
  if (request.page.follow)
    return follow(
        request.page, request.runs,
        {.report = [](const fs::path& run) { return report_json(report_input(run)); }, .row = run_row});
  if (const auto saved = request.runs.size() == 1 ? saved_report(first) : std::nullopt) {
    if (request.json || request.markdown || !request.cluster.empty())
      bad_request("{} is a saved report: --json, --markdown and --cluster need the run's folder", first);
    if (request.page.out.empty()) bad_request("{} is a saved report; name its page with --out", first);
    say("page: {} (open it in a browser)\n", write_page(request.page, "", *saved).string());
    return;
  }
  std::vector<ReportInput> all;
  for (const std::string& run : request.runs) all.push_back(report_input(run));
  if (!request.cluster.empty()) all.push_back(planned_on(all.front(), request.cluster));
  if (all.size() > 1) {
    if (request.markdown) bad_request("--markdown is the record of one run; give one RUN");
    const nlohmann::json j = comparison_json(all);
    return print(request, j, compared_text(j), "");
  }
  const nlohmann::json j = report_json(all.front());
  print(request, j, request.markdown ? j["record_markdown"].get<std::string>() : report_text(all.front(), j),
        first);
}

}  // namespace

fs::path write_run_page(const fs::path& run) {
  return write_page({}, run, report_json(report_input(run)));
}

void add_report(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("report",
                                      "compares what a run did with its forecast and lists what to change, "
                                      "as text and as a page with charts; "
                                      "several runs with each other\n"
                                      "example: trireme report runs/demo\n"
                                      "         trireme report --follow runs");
  auto request = std::make_shared<ReportRequest>();
  verb->add_option("RUN", request->runs, "run folders (train.dir), or a ladder of `trireme scale run`")
      ->required();
  verb->add_option(
      "--cluster", request->cluster,
      "compares the run with its plan on this cluster: a cluster file, or a device such as H100");
  verb->add_flag("--json", request->json, "prints JSON");
  verb->add_flag("--markdown", request->markdown, "prints the systems record as a Markdown table")
      ->excludes("--json");
  verb->add_flag("--try", request->tries,
                 "trains some steps with and without the change that promises most, by turns");
  add_page_options(*verb, request->page);
  for (const char* other : {"--json", "--markdown", "--cluster", "--try"})
    verb->get_option("--follow")->excludes(other);
  verb->callback([request] { report(*request); });
}

}  // namespace trireme::cli
