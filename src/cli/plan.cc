// trireme plan RUN.toml: what the run will cost, from the real step on meta.
#include <array>
#include <span>

#include "cli/cli.h"
#include "cli/disturbance.h"
#include "cli/known_routing_option.h"
#include "cli/plan_roofline.h"
#include "cli/plan_search.h"
#include "cli/used_keys.h"
#include "plan/axes.h"
#include "plan/booked_step.h"
#include "plan/explain.h"
#include "plan/remedies.h"
#include "plan/slowed.h"
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

// What a step takes at --site, and with --slow and --slow-link.
void slow_as_asked(Forecast& f, const PlannedRun& p, const SearchOptions& searched,
                   const DisturbanceOptions& disturbed) {
  const RunSpec& run = p.run;
  const PricedBy by = searched.priced_by("");
  if (by.site.empty() && !by.file.empty())
    bad_request("--constants: of {} a run priced op by op takes what is of a site; name one: --site NAME",
                by.file);
  if ((by.site.empty() && !disturbed.any()) || f.step_s == 0) return;
  if (!by.site.empty())
    slow_down(f, {.by = fmt::format("site {} of {}", by.site,
                                    by.file.empty() ? "data/score_constants.json" : by.file),
                  .times = site_slowness(by, run.world())});
  if (!disturbed.any()) return;
  SubjectDevice device = p.device;
  if (run.world() > kMostBookedRanks) complete_figures(device, run.world(), "--slow");
  slow_down(f, by_stragglers(run, schedule_of(run), p.cluster, rank_threads_of(run), f, disturbed.parsed(),
                             device.figures));
}

// Model, layout and batch, in the place of a run file's.
constexpr std::array kInPlaceOfRun = {
    "--model", "--parameters", "--arch", "--layers", "--hidden", "--heads", "--kv-heads",     "--ffn",
    "--vocab", "--gpus",       "--seq",  "--micro",  "--tp",     "--pp",    "--microbatches", "--chunks"};
void refuse_given(const CLI::App& verb, std::span<const char* const> names, std::string_view why) {
  for (const char* name : names)
    if (verb.count(name) > 0) bad_request("{}: {}", name, why);
}
// What is of a model's shape reckons its size from that.
void refuse_size_of_shape(const CLI::App& verb) {
  static constexpr std::array kSize = {"--parameters"};
  if (verb.count("--model") > 0 || verb.count("--layers") > 0)
    refuse_given(verb, kSize, "the model's shape says it already; leave it out");
}
// Each is an answer of its own, and the program gives one.
void refuse_two_answers(const CLI::App& verb) {
  std::string_view first;
  for (const char* name :
       {"--walls", "--roofline", "--search", "--sweep", "--largest", "--explain", "--axes"}) {
    if (verb.count(name) == 0) continue;
    if (!first.empty()) bad_request("{} and {}: each is an answer of its own; give one of them", first, name);
    first = name;
  }
}
void refuse_unread(const CLI::App& verb, const RunRequest& request, bool walls, bool roofline) {
  static constexpr std::array kDrawn = {"--svg"}, kMoney = {"--price"};
  if (request.file.empty() && !request.sets.empty())
    bad_request("--set: {}: it changes a run file's keys, and RUN is not given", request.sets.front());
  if (roofline) refuse_given(verb, kMoney, "--roofline knows no money");
  if (roofline) refuse_size_of_shape(verb);
  static constexpr std::array kOfPipelines = {"--pp", "--chunks"};
  if (walls) refuse_given(verb, kDrawn, "--walls is a table; nothing is drawn");
  if (roofline) refuse_given(verb, kOfPipelines, "--roofline knows no pipeline; it is of a whole model");
  if ((walls || roofline) && !request.file.empty())
    refuse_given(verb, kInPlaceOfRun, "the run file has its own; --set changes its keys");
}
void refuse_unread_by_run(const CLI::App& verb) {
  static constexpr std::array kMore = {"--cluster", "--svg", "--price"};
  constexpr std::string_view kWhy =
      "only --walls, --roofline and --search look at it; of a run file --set changes keys";
  refuse_given(verb, kInPlaceOfRun, kWhy);
  refuse_given(verb, kMore, kWhy);
}
// What slows a step down is of a run file's whole step; a site also of a search's.
void refuse_slowed(const CLI::App& verb, bool search, bool forecast) {
  static constexpr std::array kSlow = {"--slow", "--slow-link"}, kSite = {"--site", "--constants"};
  if (!forecast) refuse_given(verb, kSlow, "it is of a run file's step: plan RUN.toml, or simulate");
  if (!forecast && !search)
    refuse_given(verb, kSite, "it is of a run file's step (plan RUN.toml), --search, --sweep and --largest");
}

// What a search chooses by itself.
void refuse_chosen(const CLI::App& verb) {
  static constexpr std::array kChosen = {"--tp", "--pp", "--micro", "--microbatches", "--chunks"};
  refuse_given(verb, kChosen, "--search, --sweep and --largest choose it by themselves; leave it out");
  refuse_size_of_shape(verb);
}

}  // namespace

void add_plan(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("plan",
                         "forecasts memory, FLOPs and time of a run by running its real step without "
                         "data\nexample: trireme plan configs/run/demo.toml --set batch.micro=4");
  auto request = std::make_shared<RunRequest>();
  request->add_to(*verb);
  verb->get_option("RUN")->required(false);  // some of what follows needs none
  auto subject = std::make_shared<PlanSubject>();
  subject->add_to(*verb);
  auto walls = std::make_shared<WallsRequest>();
  walls->add_to(*verb);
  auto roofline = std::make_shared<RooflineRequest>();
  roofline->add_to(*verb);
  auto searched = std::make_shared<SearchOptions>();
  searched->add_to(*verb);
  auto explained = std::make_shared<bool>(false);
  verb->add_flag("--explain", *explained,
                 "instead: where parameters and activations live, when ranks synchronise, how much is "
                 "computing");
  auto routing = std::make_shared<KnownRoutingRequest>();
  routing->add_to(*verb);
  auto axes = std::make_shared<AxesRequest>();
  verb->add_flag(
      "--axes", axes->wanted,
      "instead: what one layer costs on the wire, divided by tensor, context or expert parallelism, "
      "as ranks and sequences grow");
  verb->add_option("--axes-ranks", axes->ranks, "ranks to divide it over (default: 2 4 8)")->needs("--axes");
  verb->add_option("--axes-longest", axes->longest,
                   "tokens of the longest sequence, from data.seq_len in steps of 4 (default: 64 times it)")
      ->needs("--axes");
  auto disturbed = std::make_shared<DisturbanceOptions>();
  disturbed->add_to(*verb);
  verb->callback([request, subject, axes, walls, roofline, searched, explained, routing, disturbed, verb] {
    refuse_two_answers(*verb);
    if (!routing->file.empty() && (walls->wanted || roofline->wanted || searched->any() || axes->wanted))
      bad_request("--routing: {}; it is of one run's own layout: leave it out, or plan RUN alone",
                  routing->file);
    const bool search = searched->any();
    refuse_slowed(*verb, search,
                  !search && !walls->wanted && !roofline->wanted && !axes->wanted && !*explained);
    refuse_unread(*verb, *request, walls->wanted, roofline->wanted);
    check_set_keys("plan", *request);
    if (walls->wanted) return plan_walls(*walls, *subject, *request);
    if (roofline->wanted) return plan_roofline(*roofline, *subject, *walls, *request, searched->svg);
    if (search) {
      refuse_chosen(*verb);
      return plan_search(*searched, *subject, *request, walls->price);
    }
    refuse_unread_by_run(*verb);
    if (request->file.empty())
      bad_request(
          "RUN is required: a run file, such as configs/run/demo.toml; without one plan answers --search, "
          "--sweep, --largest, --walls and --roofline (trireme plan --help)");
    // What is explained is shares of a step, not seconds: not worth measuring this machine's kernels first.
    PlannedRun planned = planned_run(*request, "", {.kernels = !*explained});
    const RunSpec& run = planned.run;
    const ClusterSpec& cluster = planned.cluster;
    if (!planned.note.empty() && !request->json) print_text("{}\n\n", planned.note);
    if (axes->wanted) return print_axes(run, cluster, *axes, request->json);
    settle(planned);
    routing->give_to(planned.run);
    Schedule schedule = schedule_of(run);
    Forecast f = forecast(run, schedule, cluster, rank_threads_of(run));
    if (*explained)
      return print_explanation(explain(run, schedule, f, rank_threads_of(run), cluster), request->json);
    find_remedies(f, run, planned.asked, cluster, rank_threads_of(run));
    slow_as_asked(f, planned, *searched, *disturbed);
    print_text("{}\n", request->json ? to_json(run, f) : to_text(run, f, cluster));
  });
}

}  // namespace trireme::cli
