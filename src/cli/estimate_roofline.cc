#include "cli/estimate_roofline.h"

#include "base/units.h"
#include "cost/flops.h"
#include "cost/memory.h"
#include "estimate/roofline.h"
#include "forecast/scaled_run.h"
#include "runtime/composed_booking.h"
#include "spec/rank_kinds.h"
#include "spec/run_schedule.h"

namespace trireme::cli {
namespace {

constexpr int64_t kUsualSeq = 4096;

// Why a run on GPUs does not fit; "" = it does, or that is not known.
std::string too_large(PlannedRun p, bool by_name) {
  RunBytes b;
  if (by_name) {
    const std::optional<RunBytes> priced = searched_bytes(p.run, p.device);
    if (!priced) return "";
    b = *priced;
  } else if (p.run.train.device == "cuda" && p.cluster.memory_bytes > 0) {
    settle(p);
    const NumberList memory = memory_of_ranks(p.cluster, p.run.layout);
    b.fits = true;
    for (const StageArena& s : largest_arenas(p.run, schedule_of(p.run), rank_threads_of(p.run), p.cluster,
                                              kEndlessArena, interned(memory))) {
      b.bytes = std::max(b.bytes, double(s.bytes));
      b.fits &= s.bytes <= (memory.empty() ? p.cluster.memory_bytes : memory[size_t(s.pp_rank)]);
    }
    b.bytes += beside_bytes(p.run);
  }
  if (b.fits) return "";
  return fmt::format("the run takes {} of {}; trireme plan names changes that fit", bytes_text(b.bytes),
                     capacity_text(p.device.figures.memory));
}

// The least that a model's state takes of each device, divided over all of them.
std::string too_large(const ModelSpec& m, int64_t gpus, double memory) {
  const auto per = double(total(state_bytes_per_parameter("bf16", "bf16")));
  const double each = per * double(parameters(m)) / double(gpus);
  if (memory <= 0 || each <= memory) return "";
  return fmt::format("weights, gradients and optimizer over {} device{} are {} each, and one has {}", gpus,
                     gpus == 1 ? "" : "s", bytes_text(each), capacity_text(memory));
}

RooflineCase roofline_case(const PlanSubject& subject, const WallsRequest& layout,
                           const RunRequest& request) {
  RooflineCase c;
  SubjectDevice device;
  if (!request.file.empty()) {
    const PlannedRun planned = planned_run(request, subject.cluster);
    const RunSpec& run = planned.run;
    if (!planned.note.empty() && !request.json) print_text("{}\n\n", planned.note);
    c.name = run.model.arch, c.model = run.model;
    c.seq = run.data.seq_len, c.micro = run.batch.micro, c.microbatches = run.microbatches();
    c.tp = run.layout.tp, c.gpus = run.world();
    device = planned.device;
    c.too_large = too_large(planned, !planned.booked());
  } else {
    const SubjectModel m = model_of(subject);
    if (!m.shape)
      bad_request(
          "--roofline: no shape of a model; it takes a run file, --model, or --layers, --hidden, --heads");
    c.name = m.name, c.model = *m.shape;
    c.seq = subject.seq > 0 ? subject.seq : kUsualSeq, c.micro = layout.micro;
    c.microbatches = std::max<int64_t>(1, layout.microbatches), c.tp = layout.tp;
    c.gpus = subject.gpus > 0 ? subject.gpus : c.tp;
    device = device_of(subject.cluster, c.gpus);
    c.too_large = too_large(c.model, c.gpus, device.figures.memory);
  }
  if (device.name.empty())
    bad_request("--roofline: on which device? --cluster FILE, or by name: --cluster H100");
  c.device = device.name, c.device_source = device.source, c.figures = device.figures;
  if (!(c.figures.bf16 > 0 && c.figures.bandwidth > 0))
    bad_request("--roofline: peak.bf16 {} and memory_bandwidth {} of {}: a roofline needs both",
                c.figures.bf16, c.figures.bandwidth, c.device);
  if (c.gpus % c.tp != 0) bad_request("--gpus: {} is no multiple of --tp {}", c.gpus, c.tp);
  if (c.model.heads % c.tp != 0)
    bad_request("--tp: {} does not divide the model's {} heads", c.tp, c.model.heads);
  return c;
}

}  // namespace

void RooflineRequest::add_to(CLI::App& verb) {
  auto* const on = verb.add_flag(
      "--roofline", wanted,
      "instead: training, prefill and decode of the model on the device's roofline and its links");
  const auto number = [&](const char* name, int64_t& to, double most, const char* what) {
    verb.add_option(name, to, what)->check(number_between(1, most))->needs(on)->capture_default_str();
  };
  number("--context", context, 1e9, "tokens of a prompt, and in the cache of a text");
  number("--batch", batch, 1e9, "prompts, or texts decoded together");
}

void estimate_roofline(const RooflineRequest& q, const PlanSubject& subject, const WallsRequest& layout,
                       const RunRequest& request, const std::string& svg) {
  RooflineCase c = roofline_case(subject, layout, request);
  c.context = q.context, c.batch = q.batch;
  const Roofline r = roofline_of(c);
  if (!svg.empty()) write_text_atomic(svg, roofline_svg(c, r));
  print_text("{}", request.json ? roofline_json(c, r) + "\n" : roofline_text(c, r));
}

}  // namespace trireme::cli
