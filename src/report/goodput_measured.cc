#include "report/goodput_measured.h"

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {

double number(const RunEvent& e, const char* key) {
  const auto it = e.all.find(key);
  return it != e.all.end() && it->is_number() ? it->get<double>() : 0;
}

// One launch: from the process's begin to its last sign of life.
struct Launch {
  double begin = 0, first_step = 0, end = 0;
  double lost_s = 0;  // seconds of its steps that the next launch did again
};

std::vector<Launch> launches_of(const RunRecord& r) {
  std::vector<Launch> all;
  for (const RunEvent& e : r.events) {
    if (starts(e)) {
      if (!all.empty()) {
        // A launch that was killed wrote no end; its last line of metrics was its last sign of life.
        const double seen = number(e, "had_time");
        if (all.back().end == 0) all.back().end = std::clamp(seen, all.back().first_step, e.time);
        all.back().lost_s = number(e, "lost_s");
      }
      const double before = number(e, "process_s");
      all.push_back({.begin = e.time - before, .first_step = e.time});
    } else if (ends(e) && !all.empty()) {
      all.back().end = std::max(e.time, all.back().first_step);
    }
  }
  if (!all.empty() && all.back().end == 0) all.back().end = std::max(r.changed, all.back().first_step);
  return all;
}

}  // namespace

MeasuredGoodput measured_goodput(const RunRecord& r) {
  MeasuredGoodput g;
  const SaveCosts saves = save_costs(r);
  const double stalls = saves.stall_s, steps = saves.steps_s;
  double skipped = 0;
  for (const StepLine& s : r.steps) skipped += s.skipped && known(s.step_s) ? s.step_s : 0;
  g.useful_s = steps - skipped;
  const std::vector<Launch> launches = launches_of(r);
  double start_up = 0, between = 0, repeated = 0, inside = 0;
  for (size_t i = 0; i < launches.size(); i++) {
    const Launch& l = launches[i];
    start_up += std::max(0.0, l.first_step - l.begin);
    inside += l.end - l.first_step;
    repeated += l.lost_s;
    if (i > 0) between += std::max(0.0, l.begin - launches[i - 1].end);
  }
  const auto lose = [&](const char* cause, double s) {
    if (std::abs(s) > 1e-9) g.lost.push_back({cause, s});
  };
  lose("steps without an update (skipped)", skipped);
  lose("checkpoint stalls", stalls);
  if (launches.empty()) {
    g.wall_s = steps + stalls;
    g.why_not =
        "the run recorded no launches (events.jsonl): wall time is that of steps and checkpoint stalls";
    return g;
  }
  lose("steps done twice after a restart", repeated);
  lose("start-up (process start to the first step)", start_up);
  lose("no process between launches", between);
  const double rest = inside - steps - stalls - repeated;
  lose("evaluation, metrics and other time between steps", rest);
  g.wall_s = g.useful_s;
  for (const LostTime& l : g.lost) g.wall_s += l.seconds;
  return g;
}

}  // namespace trireme
