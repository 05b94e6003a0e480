// trireme plan RUN.toml: what the run will cost, from the real step on meta.
#include <array>
#include <functional>

#include "catalog/price_list.h"
#include "cli/cli.h"
#include "cli/disturbance.h"
#include "cli/known_routing_option.h"
#include "cli/search.h"
#include "cli/slow_booking.h"
#include "cli/used_keys.h"
#include "forecast/alternatives.h"
#include "forecast/axes.h"
#include "forecast/booked_step.h"
#include "forecast/explain.h"
#include "forecast/remedies.h"
#include "forecast/slowed.h"
#include "spec/run_schedule.h"

namespace trireme::cli {
namespace {

struct AxesRequest {
  bool wanted = false;
  std::vector<int64_t> ranks = {2, 4, 8};
  int64_t longest = 0;  // 0 = 64 times data.seq_len
};

void print_axes(const RunSpec& run, const ClusterSpec& cluster, const AxesRequest& wish, bool json) {
  for (int64_t n : wish.ranks)
    if (n < 2 || n > 1024) bad_request("--axes-ranks: {} is out of range; 2 to 1024", n);
  const int64_t longest = wish.longest > 0 ? wish.longest : 64 * run.data.seq_len;
  const AxisTable table = compare_axes(run, cluster, rank_threads_of(run), wish.ranks, longest);
  print_text("{}", json ? to_json(table) + "\n" : to_text(table, run, cluster));
}

void print_explanation(const Explanation& e, bool json) {
  print_text("{}", json ? explain_json(e) + "\n" : explain_text(e));
}

// The options of plan.
struct PlanOptions {
  bool explain = false, all = false;
  std::string site, constants, prices, region;
  AxesRequest axes;
  KnownRoutingRequest routing;
  DisturbanceOptions disturbed;
};

// The step at the site of `by`, and with --slow and --slow-link.
void slow_as_asked(Forecast& f, const PlannedRun& p, const PlanOptions& o, const PricedBy& by) {
  const RunSpec& run = p.run;
  const bool of_site = !f.closed_form && !by.site.empty();  // the search's prices have the site's constants
  if (!f.closed_form && by.site.empty() && !by.file.empty())
    bad_request("--constants: of {} a run priced op by op takes what is of a site; name one: --site NAME",
                by.file);
  const bool disturbed = o.disturbed.any();
  if ((!of_site && !disturbed) || f.step_s == 0) return;
  if (of_site)
    slow_down(f, {.by = fmt::format("site {} of {}", by.site,
                                    by.file.empty() ? "data/score_constants.json" : by.file),
                  .times = site_slowness(by, run.world())});
  if (!disturbed) return;
  SubjectDevice device = p.device;
  if (run.world() > kMostBookedRanks) complete_figures(device, run.world(), "--slow");
  slow_down(f, by_stragglers(run, schedule_of(run), p.cluster, rank_threads_of(run), f, o.disturbed.parsed(),
                             device.figures));
}

void reject_unread(const CLI::App& verb, const PlanOptions& o) {
  if (o.explain && o.axes.wanted)
    bad_request("--explain and --axes: each is an answer of its own; give one of them");
  static constexpr std::array kOfAxes = {"--axes-ranks", "--axes-longest"};
  static constexpr std::array kOfStep = {"--slow", "--slow-link", "--site", "--constants"};
  if (!o.axes.wanted) refuse_given(verb, kOfAxes, "it needs --axes");
  static constexpr std::array kOfAnswer = {"--all", "--prices", "--region"};
  if (o.axes.wanted || o.explain) refuse_given(verb, kOfAnswer, "--explain and --axes do not read it");
  if (o.axes.wanted || o.explain)
    refuse_given(verb, kOfStep, "it applies to the forecast of a step; leave out --explain and --axes");
  if (!o.routing.file.empty() && o.axes.wanted)
    bad_request("--routing: {}; it applies to one layout; leave out --axes", o.routing.file);
}

void plan_run(const RunRequest& request, const PlanOptions& o) {
  // --explain prints shares of a step, not seconds, and does not need this machine's kernels.
  PlannedRun planned = planned_run(request, "", {.kernels = !o.explain});
  const RunSpec& run = planned.run;
  const ClusterSpec& cluster = planned.cluster;
  if (!planned.note.empty() && !request.json) print_text("{}\n\n", planned.note);
  if (o.axes.wanted) return print_axes(run, cluster, o.axes, request.json);
  settle(planned);
  o.routing.give_to(planned.run);
  const ListedPrice listed = listed_price(o.prices, o.region, planned.device.name);
  const bool is_listed = listed.per_hour > 0;
  planned.cluster.price_per_hour = is_listed ? listed.per_hour : planned.device.price_per_hour;
  planned.cluster.currency = is_listed ? listed.currency : planned.device.currency;
  Schedule schedule = schedule_of(run);
  const PricedBy by = priced_by("", "", o.site, o.constants);
  SlowBooking booking("`trireme simulate --closed-form` of this run answers at once, layer by layer");
  Forecast f = forecast(run, schedule, cluster, rank_threads_of(run), by, std::ref(booking));
  if (o.explain)
    return print_explanation(explain(run, schedule, f, rank_threads_of(run), cluster), request.json);
  find_remedies(f, run, planned.asked, cluster, rank_threads_of(run));
  find_alternatives(f, run, cluster);
  find_replayed_alternatives(f, run, planned.asked, cluster, rank_threads_of(run));
  slow_as_asked(f, planned, o, by);
  if (request.json) return print_text("{}\n", to_json(run, f));
  print_text("{}", o.all ? to_text(run, f, cluster) + "\n" : answer_text(run, f, cluster));
}

}  // namespace

void add_plan(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("plan",
                         "forecasts memory, FLOPs and time of a run: its real step, without data\n"
                         "example: trireme plan configs/run/demo.toml --set batch.micro=4");
  auto request = std::make_shared<RunRequest>();
  request->add_to(*verb);
  auto options = std::make_shared<PlanOptions>();
  PlanOptions& o = *options;
  verb->add_flag("--explain", o.explain, "instead: where memory lives, when ranks synchronise");
  verb->add_flag("--all", o.all, "also ops, memory by bucket, collectives");
  add_price_options(*verb, o.prices, o.region);
  verb->add_option("--site", o.site, "cluster whose measured constants price the step");
  verb->add_option("--constants", o.constants, "file of `trireme score --calibrate`, --fit");
  o.routing.add_to(*verb);
  verb->add_flag("--axes", o.axes.wanted, "instead: wire of one layer, by axis and length to --axes-longest");
  verb->add_option("--axes-ranks", o.axes.ranks, "--axes: ranks (default: 2 4 8)");
  verb->add_option("--axes-longest", o.axes.longest, "--axes: tokens (default: 64 x data.seq_len)");
  o.disturbed.add_to(*verb);
  verb->get_help_ptr()->group("");  // all other options fit a screen
  verb->callback([request, options, verb] {
    reject_unread(*verb, *options);
    check_set_keys("plan", *request);
    plan_run(*request, *options);
  });
}

}  // namespace trireme::cli
