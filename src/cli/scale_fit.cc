// trireme scale fit: laws of finished runs. trireme report LADDER is the same with a page.
#include "base/file.h"
#include "base/say.h"
#include "cli/scale.h"
#include "scaling/fit_page.h"
#include "scaling/ladder_file.h"

namespace trireme::cli {
namespace {

struct FitRequest {
  std::vector<std::string> paths, forecasts;
  std::string out, pictures, page;
  int64_t bootstrap = 400, seed = 1, drop_worst = 0;
  double level = 0.9;
  bool json = false;
};

// "1e21", or "N,D".
ForecastAt forecast_at(const std::string& text) {
  const size_t comma = text.find(',');
  if (comma == std::string::npos) return {positive("--forecast", text)};
  ForecastAt at;
  at.parameters = positive("--forecast", text.substr(0, comma));
  at.tokens = positive("--forecast", text.substr(comma + 1));
  at.flops = 6 * at.parameters * at.tokens;
  return at;
}

void fit(const FitRequest& q) {
  const ScaleRows rows = read_scale_rows(q.paths, q.drop_worst);
  if (!q.json)
    for (const std::string& note : rows.notes) say("{}\n", note);
  std::vector<ForecastAt> forecasts;
  for (const std::string& f : q.forecasts) forecasts.push_back(forecast_at(f));
  const std::string source =
      q.paths.size() == 1 ? q.paths[0] : fmt::format("{} tables and runs", q.paths.size());
  std::optional<Progress> bar;
  BootstrapOptions o{.resamples = q.bootstrap, .seed = uint64_t(q.seed), .level = q.level};
  if (!q.json && q.bootstrap > 0) bar.emplace("bootstrap", q.bootstrap);
  o.done = [&](int64_t n) {
    if (bar) bar->update(n);
    if (interrupt_requested()) throw Error("interrupted; nothing was written", Fault::run);
  };
  install_interrupt_handlers();
  const FitReport r = fit_all(rows.points, source, o);
  if (bar) bar->finish();
  const std::string text = fit_text(r, forecasts);
  print_text("{}", q.json ? fit_json(r, forecasts) : text);
  if (!q.json) print_text("{}", fit_sketch(r));
  if (!q.out.empty()) write_text_atomic(q.out, law_file_text(r));
  if (q.pictures.empty() && q.page.empty()) return;
  const std::vector<Picture> pictures = fit_pictures(r, rows.points, forecasts);
  if (!q.pictures.empty()) make_folders(q.pictures);
  if (!q.pictures.empty())
    for (const Picture& p : pictures) write_text_atomic(fs::path(q.pictures) / p.name, p.svg);
  if (q.page.empty()) return;
  write_text_atomic(q.page, fit_page(source, text, pictures));
  if (!q.json) say("page: {} (open it in a browser)\n", q.page);
}

}  // namespace

bool is_ladder(const fs::path& folder) {
  return fs::is_regular_file(folder / kLadderFile);
}

void report_ladder(const std::string& folder, const std::string& page, bool json) {
  FitRequest q;
  q.paths = {folder};
  q.json = json;
  q.page = page.empty() && !json ? (fs::path(folder) / "report.html").string() : page;
  fit(q);
}

void add_scale_fit(CLI::App& scale) {
  CLI::App* verb = scale.add_subcommand("fit",
                                        "fits Chinchilla's law (envelope, IsoFLOP parabolas, parametric "
                                        "form), best learning rates and batches, and "
                                        "T2's laws of samples to tables and finished runs\n"
                                        "example: trireme scale fit runs.csv --forecast 1e21 --out law.json\n"
                                        "         trireme scale fit ladder/run-* --pictures pictures");
  auto q = std::make_shared<FitRequest>();
  verb->add_option(
          "TABLE", q->paths,
          "tables of runs, CSV or JSON, with columns of " + loss_columns() + "; or folders of finished runs")
      ->required();
  verb->add_option(
          "--forecast", q->forecasts,
          "forecasts the loss of the best size for these FLOPs, or of N parameters after D tokens: N,D")
      ->type_name("FLOPS")
      ->allow_extra_args(false);
  verb->add_option("--out", q->out, "writes the law, JSON, for `scale optimum` and `scale plan`")
      ->type_name("FILE");
  verb->add_option("--pictures", q->pictures, "writes pictures into this folder, SVG")->type_name("FOLDER");
  verb->add_option("--page", q->page, "writes a page with the pictures and this text, HTML")
      ->type_name("FILE");
  verb->add_option("--bootstrap", q->bootstrap, "resamples of runs and of residuals, for intervals; 0 = none")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  verb->add_option("--level", q->level, "share of resamples within intervals")
      ->check(CLI::Range(0.5, 0.999))
      ->capture_default_str();
  verb->add_option("--seed", q->seed, "of resamples")
      ->check(CLI::Range(0, 2147483647))
      ->capture_default_str();
  verb->add_option("--drop-worst", q->drop_worst, "leaves out the rows with the N largest losses")
      ->type_name("N")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  verb->add_flag("--json", q->json, "prints JSON");
  verb->callback([q] { fit(*q); });
}

}  // namespace trireme::cli
