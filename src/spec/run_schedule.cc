#include "spec/run_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "schedule/holders.h"
#include "spec/batch_ramp.h"
#include "spec/toml.h"

namespace trireme {

int64_t replicas_of(const LayoutSpec& l) {
  return l.dp * l.cp;
}
ContextPlacement placement_of(const LayoutSpec& l) {
  return l.cp_method == "ulysses" ? ContextPlacement::contiguous : context_placement(l.cp_placement);
}

int effective_zero(const LayoutSpec& l) {
  return replicas_of(l) == 1 || l.shard_group == 1 ? 0 : int(l.zero);
}

bool has_own_schedule(const LayoutSpec& l) {
  return l.schedule == "file" || l.schedule == "auto";
}

bool has_copies(const RunSpec& run) {
  return run.layout.schedule == "dualpipe" ||
         (has_own_schedule(run.layout) && run.own_schedule.actions && run.own_schedule.actions->copies > 1);
}

bool OwnSchedule::operator==(const OwnSchedule& o) const {
  return actions == o.actions || (actions && o.actions && *actions == *o.actions);
}

namespace {

void check_compute_alone(const Schedule& s, std::string_view from) {
  for (size_t r = 0; r < s.ranks.size(); r++)
    for (const Action& a : s.ranks[r])
      if (a.kind > Act::W)
        bad_request(
            "{}: rank {} has {}; right are forwards and backwards alone (F, B, I, W): the run adds what is "
            "computed again, messages, reductions and steps",
            from, r, to_text(a));
}

void check_sizes(const RunSpec& run, const Schedule& s, std::string_view from) {
  const LayoutSpec& l = run.layout;
  if (int64_t(s.ranks.size()) != l.pp)
    bad_request("{}: {} ranks (lines), and layout.pp = {}", from, s.ranks.size(), l.pp);
  if (s.stages != l.pp * l.chunks)
    bad_request("{}: {} stages, and layout.pp * layout.chunks = {} * {}", from, s.stages, l.pp, l.chunks);
  if (s.microbatches != run.microbatches())
    bad_request("{}: {} microbatches, and batch.global / (layout.dp * batch.micro) = {} / ({} * {}) = {}",
                from, s.microbatches, run.batch.global, l.dp, run.batch.micro, run.microbatches());
}

void check_places(const RunSpec& run, const Schedule& s, std::string_view from) {
  const Holders holders(s);
  const int64_t each = run.layout.chunks * s.copies;
  for (int r = 0; r < int(s.ranks.size()); r++) {
    if (const auto held = int64_t(holders.stages_of(r).size()); held != each)
      bad_request(
          "{}: rank {} has {} stages, and layout.chunks = {}{}", from, r, held, run.layout.chunks,
          s.copies > 1 ? fmt::format(", of which it has {} times as many by its copies", s.copies) : "");
    if (s.copies > 1 && int(holders.alike(r).size()) != s.copies)
      bad_request(
          "{}: rank {} has stages {}, and as many ranks as there are copies, {}, must have the same ones",
          from, r, fmt::join(holders.stages_of(r), ", "), s.copies);
  }
  if (s.copies > 1 && run.train.noise_scale > 0)
    bad_request(
        "{}: {} copies of each stage, each with a part of its gradient, and train.noise_scale = {}; right is "
        "0",
        from, s.copies, run.train.noise_scale);
  if (s.copies > 1 && run.model.moe() && run.moe.unit == "global" &&
      (run.moe.aux_loss > 0 || run.moe.capacity > 0))
    bad_request(
        "{}: {} copies of each stage, each of which knows the choices of its own microbatches, and "
        "moe.unit = \"global\"; right is \"sequence\" or \"microbatch\"",
        from, s.copies);
  if (s.copies > 1 && run.model.tied && holders.ranks_of(0) != holders.ranks_of(s.stages - 1))
    bad_request(
        "{}: the first stage is on ranks {} and the last on {}; with copies and model.tied = true both must "
        "be on "
        "the same",
        from, fmt::join(holders.ranks_of(0), ", "), fmt::join(holders.ranks_of(s.stages - 1), ", "));
}

// A unit over the whole batch counts, for each microbatch, the choices of those before it.
void check_forwards(const RunSpec& run, const Schedule& s, std::string_view from) {
  if (!run.model.moe() || run.moe.unit != "global" || run.moe.aux_loss == 0) return;
  for (size_t r = 0; r < s.ranks.size(); r++) {
    std::vector<int> last(size_t(s.stages), -1);
    for (const Action& a : s.ranks[r]) {
      if (a.kind != Act::F) continue;
      int& before = last[size_t(a.stage)];
      if (a.mb < before)
        bad_request(
            "{}: rank {} has {} behind {}F{}, and with moe.unit = \"global\" and moe.aux_loss = {} a "
            "microbatch "
            "counts the choices of those before it; right are forwards of each stage from the first "
            "microbatch "
            "to the last, or moe.unit = \"sequence\" or \"microbatch\"",
            from, r, to_text(a), a.stage, before, run.moe.aux_loss);
      before = a.mb;
    }
  }
}

}  // namespace

void set_own_schedule(RunSpec& run, const Schedule& s, std::string_view from) {
  check_compute_alone(s, from);
  check_sizes(run, s, from);
  const auto valid = [&](const Schedule& one) {
    try {
      validate(one);
    } catch (const Error& e) {
      throw Error(fmt::format("{}: {}", from, e.what()), e.fault);
    }
  };
  valid(s);
  check_places(run, s, from);
  check_forwards(run, s, from);
  valid(add_transfers(s));
  run.own_schedule.actions = std::make_shared<const Schedule>(s);
}

void read_own_schedule(RunSpec& run) {
  if (run.layout.schedule != "file") return;
  constexpr int64_t kMostBytes = 64 << 20;
  const fs::path& path = run.layout.schedule_file;
  const std::string from = fmt::format("layout.schedule_file = \"{}\"", run.layout.schedule_file);
  Schedule compute;
  try {
    compute = parse_schedule(read_small(path, kMostBytes));
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", from, e.what()), Fault::request);
  }
  set_own_schedule(run, compute, from);
}

Schedule schedule_of(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  require(!has_own_schedule(l) || run.own_schedule.actions, "the run's own schedule is not there yet");
  Schedule s = has_own_schedule(l)
                   ? *run.own_schedule.actions
                   : make_schedule(l.schedule, int(l.pp), int(l.chunks), int(run.microbatches()));
  return with_passes(std::move(s), {.recomputes = l.recompute != "none",
                                    .replicas = replicas_of(l) > 1,
                                    .zero = effective_zero(l),
                                    .reshard_after_forward = l.reshard_after_forward,
                                    .exchanges = l.ep > 1});
}

Schedule with_passes(Schedule compute, const StepPasses& p) {
  if (p.recomputes) compute = add_recompute(std::move(compute), {}, true);
  Schedule s = add_step(add_transfers(std::move(compute)));
  return p.replicas ? add_zero(std::move(s), p.zero, p.reshard_after_forward, p.exchanges) : s;
}

std::vector<Schedule> schedules_of(const RunSpec& run) {
  std::vector<Schedule> all;
  for (const RampStage& stage : run.batch.ramp) {
    try {
      all.push_back(schedule_of(with_batch(run, stage.value)));
    } catch (const Error& e) {
      throw Error(fmt::format("batch.ramp: a stage of {} sequences: {}", stage.value, e.what()), e.fault);
    }
  }
  all.push_back(schedule_of(run));
  return all;
}

}  // namespace trireme
