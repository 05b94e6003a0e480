#include "cli/plan_walls.h"

#include <numeric>

#include "cost/flops.h"
#include "cost/walls.h"
#include "plan/forecast.h"
#include "plan/walls.h"
#include "spec/run_schedule.h"

namespace trireme::cli {
namespace {

// The run's own model, device and layout; MFU by its forecast on meta.
void from_run(const RunRequest& request, WallsCase& c, SubjectDevice& device) {
  const RunSpec run = request.load();
  const ClusterSpec cluster = cluster_of(run);
  c.name = run.model.arch, c.model = run.model;
  c.parameters = double(parameters(run.model));
  c.per = state_bytes_per_parameter(run.precision.compute, run.precision.grads);
  c.seq = run.data.seq_len, c.micro = run.batch.micro;
  c.gpus = run.world(), c.tp = run.layout.tp, c.pp = run.layout.pp, c.microbatches = run.microbatches();
  c.tokens = double(run.train.steps) * double(run.batch.global) * double(run.data.seq_len);
  device = device_of(cluster, run.precision.compute);
  const Forecast f = forecast(run, schedule_of(run), cluster, rank_threads_of(run));
  if (f.step_s > 0)
    c.forecast = {.step_s = f.step_s,
                  .mfu = f.mfu,
                  .tokens = double(f.tokens),
                  .source = f.expected ? "expected, trireme plan" : "at the roof, trireme plan"};
}

// What --tp, --pp and --microbatches say is enough for the calibrated closed form.
void forecast_by_closed_form(WallsCase& c) {
  if (!c.model || c.seq == 0 || c.microbatches == 0 || c.figures.bf16 == 0 || c.figures.attention == 0)
    return;
  StepCase step{.model = *c.model,
                .seq = c.seq,
                .tp = c.tp,
                .pp = c.pp,
                .dp = int64_t(c.replicas()),
                .micro = c.micro,
                .microbatches = c.microbatches,
                .chunks = c.chunks,
                .zero = 1};
  if (c.model->moe()) step.ep = std::gcd(c.model->experts, step.dp * step.tp);
  c.forecast = closed_form_step(step, c.device, c.figures);
}

void refuse_contradictions(const WallsCase& c, const PlanSubject& s, const RunRequest& run) {
  if (!run.file.empty() && !s.model.empty())
    bad_request("--model: {}; the run file {} has its own", s.model, run.file);
  if (c.gpus % (c.tp * c.pp) != 0)
    bad_request("--gpus: {} is no multiple of --tp {} x --pp {}", c.gpus, c.tp, c.pp);
  if (c.reach > 0 && c.used() == 0) bad_request("--reach: {} of what? --mfu says what the run has", c.reach);
  if (c.model && c.pp > c.model->layers) bad_request("--pp: {} stages for {} layers", c.pp, c.model->layers);
}

}  // namespace

void WallsRequest::add_to(CLI::App& verb) {
  auto* const on = verb.add_flag("--walls", wanted,
                                 "instead, also without a run file: the memory, the time and the money that "
                                 "a run takes, in closed form");
  constexpr double kMost = 1e21, kMostDegree = 1e9;
  const auto number = [&](const char* name, double& to, double low, double high, const char* what) {
    verb.add_option(name, to, what)->check(number_between(low, high))->needs(on);
  };
  verb.add_flag("--arithmetic", arithmetic, "prints under every number of --walls how it was reckoned")
      ->needs(on);
  number("--tokens", tokens, 1, kMost, "to train on (default: 20 a parameter, or the run's)");
  number("--mfu", mfu, 1e-6, 1,
         "share of the peak that training uses, 0.4; else forecast where a layout is known");
  number("--reach", reach, 1e-6, 1, "a better share: what --mfu wastes against it");
  verb.add_option("--price", price, "of a device-hour, in any currency (default: the cluster file's)")
      ->check(number_between(0, 1e9));
  number("--budget", budget, 0, 1e18, "money to spend");
  const auto degree = [&](const char* name, int64_t& to, const char* what) {
    verb.add_option(name, to, what)->check(number_between(1, kMostDegree));
  };
  degree("--micro", micro, "sequences of a microbatch (default: 1)");
  degree("--tp", tp, "tensor parallel degree");
  degree("--pp", pp, "pipeline ranks");
  degree("--microbatches", microbatches, "of a step, of one replica");
  degree("--chunks", chunks, "stages a pipeline rank, interleaved");
}

void plan_walls(const WallsRequest& q, const PlanSubject& subject, const RunRequest& request) {
  WallsCase c;
  SubjectDevice device;
  if (!request.file.empty()) {
    from_run(request, c, device);
  } else {
    const SubjectModel m = model_of(subject);
    c.name = m.name, c.model = m.shape, c.parameters = m.parameters;
    c.gpus = subject.gpus > 0 ? subject.gpus : q.tp * q.pp;
    c.seq = subject.seq, c.micro = q.micro, c.tp = q.tp, c.pp = q.pp, c.microbatches = q.microbatches;
    c.chunks = q.chunks;
  }
  if (!subject.cluster.empty()) device = device_of(subject.cluster);
  c.active = c.model && c.model->moe() ? active_parameters(*c.model) : c.parameters;
  c.device = device.name, c.device_source = device.source, c.figures = device.figures;
  c.mtbf_hours = device.mtbf_hours;
  if (q.tokens > 0) c.tokens = q.tokens;
  if (c.tokens == 0) c.tokens = kTokensPerParameter * c.parameters, c.tokens_assumed = true;
  c.mfu = q.mfu, c.reach = q.reach, c.budget = q.budget;
  c.price = q.price > 0 ? q.price : device.price_per_hour;
  refuse_contradictions(c, subject, request);
  if (c.mfu == 0 && c.forecast.step_s == 0) forecast_by_closed_form(c);
  if (walls_of(c).empty())
    bad_request(
        "--walls: nothing is given; it takes a run file, --model or --parameters, and --tokens, --cluster, "
        "--gpus, "
        "--mfu, --price");
  fmt::print("{}", request.json ? walls_json(c) + "\n" : walls_text(c, q.arithmetic));
}

}  // namespace trireme::cli
