#include "spec/batch_ramp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace trireme {

size_t stage_at(const BatchSpec& batch, int64_t step) {
  size_t stage = 0;
  while (stage < batch.ramp.size() && step > batch.ramp[stage].until) stage++;
  return stage;
}

int64_t global_at(const BatchSpec& batch, int64_t step) {
  const size_t stage = stage_at(batch, step);
  return stage < batch.ramp.size() ? batch.ramp[stage].value : batch.global;
}

int64_t samples_until(const BatchSpec& batch, int64_t step) {
  __int128 samples = 0;
  int64_t before = 0;
  for (const RampStage& s : batch.ramp) {
    const int64_t last = std::clamp(step, before, std::max(before, s.until));
    samples += __int128(last - before) * s.value;
    before = last;
  }
  samples += __int128(step - before) * batch.global;
  if (samples > std::numeric_limits<int64_t>::max())
    bad_request("step {} of {} sequences is beyond sample 2^63", step, batch.global);
  return int64_t(samples);
}

bool same_batches(const BatchSpec& a, const BatchSpec& b, int64_t steps) {
  // Both are constant from one of these steps to the next.
  std::vector<int64_t> looked = {1, steps};
  for (const BatchSpec* batch : {&a, &b})
    for (const RampStage& s : batch->ramp)
      if (s.until < steps) looked.insert(looked.end(), {s.until, s.until + 1});
  return steps < 1 || std::all_of(looked.begin(), looked.end(),
                                  [&](int64_t step) { return global_at(a, step) == global_at(b, step); });
}

double steps_for(const BatchSpec& batch, double sequences) {
  double done = 0;
  for (const RampStage& s : batch.ramp) {
    const double steps = std::max(0.0, double(s.until) - done), here = steps * double(s.value);
    if (sequences <= here) return done + std::ceil(sequences / double(s.value));
    sequences -= here;
    done += steps;
  }
  return done + std::ceil(sequences / double(batch.global));
}

int64_t smallest_batch(const BatchSpec& batch) {
  return batch.ramp.empty() ? batch.global : global_at(batch, 1);
}

int64_t divisor_of_batches(const BatchSpec& batch) {
  int64_t divisor = batch.global;
  for (const RampStage& s : batch.ramp) divisor = std::gcd(divisor, s.value);
  return divisor;
}

std::vector<BatchStage> batch_stages(const RunSpec& run) {
  std::vector<BatchStage> out;
  int64_t first = 1;
  for (const RampStage& s : run.batch.ramp) {
    const int64_t last = std::min(s.until, run.train.steps);
    if (first > last) break;
    out.push_back({.first = first, .last = last, .global = s.value});
    first = last + 1;
  }
  if (first <= run.train.steps)
    out.push_back({.first = first, .last = run.train.steps, .global = run.batch.global});
  return out;
}

RunSpec with_batch(RunSpec run, int64_t global) {
  run.batch.global = global;
  run.batch.ramp.clear();
  return run;
}

std::string ramp_text(const BatchSpec& batch) {
  if (batch.ramp.empty()) return fmt::format("{} sequences", batch.global);
  std::string s;
  for (const RampStage& stage : batch.ramp)
    s += fmt::format("{}{} to step {}", stage.value, s.empty() ? " sequences" : "", stage.until) + ", ";
  return s + fmt::format("then {}", batch.global);
}

std::string batch_text(const RunSpec& run) {
  return fmt::format("{} sequences of {} tokens, {} a microbatch{}", run.batch.global, run.data.seq_len,
                     run.batch.micro, run.batch.ramp.empty() ? "" : "; " + ramp_text(run.batch));
}

void check_ramp(const RunSpec& run, std::vector<Problem>& out) {
  const Ramp& ramp = run.batch.ramp;
  if (ramp.size() > kMostRampStages)
    out.push_back({{"batch.ramp"},
                   fmt::format(": {} stages are too many; give at most {}", ramp.size(), kMostRampStages)});
  const __int128 per_round = __int128(run.layout.dp) * run.batch.micro;
  int64_t sequences = 0, until = 0;
  for (const RampStage& s : ramp) {
    auto wrong = [&](std::vector<std::string> keys, const std::string& text) {
      out.push_back({std::move(keys), text});
    };
    if (s.value % per_round != 0)
      return wrong({"batch.ramp", "batch.micro", "layout.dp"},
                   fmt::format(": {} is not a multiple of dp * micro = {} * {} = {}; give multiples of it",
                               s.value, run.layout.dp, run.batch.micro, int64_t(per_round)));
    if (s.value > run.batch.global)
      return wrong(
          {"batch.ramp", "batch.global"},
          fmt::format(": {} is more than global = {}; give at most that", s.value, run.batch.global));
    if (s.value <= sequences || s.until <= until)
      return wrong({"batch.ramp"},
                   fmt::format(": [{}, {}] comes after [{}, {}]; give pairs of which both numbers rise",
                               s.value, s.until, sequences, until));
    sequences = s.value;
    until = s.until;
  }
}

}  // namespace trireme
