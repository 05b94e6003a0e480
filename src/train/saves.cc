#include "train/saves.h"

#include <algorithm>

#include "base/progress.h"
#include "base/timed.h"
#include "cost/checkpoint_interval.h"
#include "spec/cluster_spec.h"
#include "train/checkpointing.h"

namespace trireme {
namespace {

// Steps after the start until the first save of checkpoint_every = "auto": it measures what a save costs, and
// the first step of a run is slower than the others.
constexpr int64_t kMeasureAfter = 3;
constexpr int kMostFailures = 2;  // in a row

}  // namespace

Saves::Saves(const RunSpec& run, const TrainOptions& options, const TrainHooks& hooks,
             const StageRunner& runner, CommSet& comms, SaveChecks checks)
    : run_(run), hooks_(hooks), runner_(runner), comms_(comms), checks_(std::move(checks)) {
  if (hooks.phase) hook_ = [&hooks](std::string_view p) { hooks.phase("save:" + std::string(p)); };
  if (run.train.async_save)
    saver_.emplace(run, comms.world() > 1 ? &comms : nullptr, hook_, checks_.complete);
  mtbf_s_ = options.mtbf_s > 0 ? options.mtbf_s : ClusterSpec().mtbf_s(run.world());
  next_ = kMeasureAfter;
}

void Saves::start_from(int64_t step, const fs::path& folder) {
  asked_ = saved_ = step, newest_ = folder;
  next_ = step + kMeasureAfter;
}

void Saves::note(const std::string& line) const {
  if (hooks_.note) hooks_.note(line);
}

bool Saves::due(int64_t step) const {
  if (step == wanted_) return true;
  const CountOrAuto& every = run_.train.checkpoint_every;
  if (every.automatic) return step >= next_;
  return every.count > 0 && step % every.count == 0;
}

void Saves::save(int64_t step) {
  begin(step, false);
}

void Saves::begin(int64_t step, bool last) {
  const double start = now_s();
  if (checks_.before) checks_.before(step);
  if (!saver_) {
    in_the_way(step);
  } else {
    settle();
    saver_->save(runner_, step, checks_.agree);
    asked_ = step;
    if (!told_memory_ && first())
      note(fmt::format("checkpoints are written beside training, from a copy of {} in host memory",
                       human_bytes(saver_->snapshot_bytes())));
    told_memory_ = true;
  }
  const double stall = now_s() - start;
  stall_s_ = stall_s_.value_or(0) + stall;
  if (saver_) tell(last);
  if (!last && run_.train.checkpoint_every.automatic) plan_next(step, stall);
}

// Training waits, and an error ends the run.
void Saves::in_the_way(int64_t step) {
  const double begin = now_s();
  const SavedTensors tensors = tensors_to_save(runner_, step);
  if (checks_.agree) checks_.agree(step);
  try {
    newest_ = save_checkpoint(runner_, run_, step, hook_, tensors, checks_.complete);
  } catch (const Error& e) {
    throw Error(fmt::format("step {}: {}; {}", step, e.what(), what_stays()), fault_in_run(e.fault));
  }
  asked_ = saved_ = step;
  last_write_s_ = now_s() - begin;
  write_s_ = write_s_.value_or(0) + last_write_s_;
  if (first()) note(fmt::format("saved {} in {}", newest_.string(), human_seconds(last_write_s_)));
}

void Saves::settle() {
  if (!saver_) return;
  saver_->finish();
  tell(false);
}

void Saves::look() {
  if (!saver_) return;
  saver_->poll();
  tell(false);
}

void Saves::finish(int64_t step) {
  const double start = now_s();
  auto wait = [&] {
    if (!saver_) return;
    saver_->finish();
    tell(true);
  };
  if (asked_ == step) wait();
  // One that was noted as failed is tried again; only rank 0 knows.
  const bool missing = first() && saved_ != step;
  if (asked_ == step && agree_max(comms_.control(), missing) == 0) return;
  begin(step, true);
  wait();
  stall_s_ = now_s() - start;
}

void Saves::tell(bool last) {
  for (const SaveEnd& e : saver_->ended()) ended(e, last);
}

void Saves::ended(const SaveEnd& e, bool last) {
  if (e.error.empty()) {
    failures_ = 0;
    saved_ = e.step, newest_ = e.folder, last_write_s_ = e.write_s;
    write_s_ = write_s_.value_or(0) + e.write_s;
    note(fmt::format("saved {} in {}", e.folder.string(), human_seconds(e.write_s)));
    return;
  }
  failures_++;
  if (last || failures_ >= kMostFailures)
    throw Error(fmt::format("step {}: {}; {}{}", e.step, e.error,
                            last ? "" : "two saves in a row have failed; ", what_stays()),
                fault_in_run(e.fault));
  note(fmt::format("step {} was not saved: {}; the run goes on, and {}", e.step, e.error, what_stays()));
}

std::string Saves::what_stays() const {
  return saved_ == 0 ? "nothing had been saved before"
                     : fmt::format("the checkpoint of step {} stays, and the same command goes on from there",
                                   saved_);
}

// Rank 0's clock decides for all.
void Saves::plan_next(int64_t step, double stall_s) {
  const double step_s = median(step_s_), interval = daly_interval(stall_s, mtbf_s_);
  int64_t steps = first() ? checkpoint_steps(interval, last_write_s_, step_s) : 0;
  steps = agree_max(comms_.control(), steps);
  next_ = step + steps;
  step_s_.clear();
  if (first())
    note(fmt::format(
        "checkpoint_every auto: a save costs {} of training and takes {} to write, a failure is expected "
        "every {}: the next one in {} steps",
        human_seconds(stall_s), last_write_s_ > 0 ? human_seconds(last_write_s_) : "an unknown time",
        human_seconds(mtbf_s_), steps));
}

}  // namespace trireme
