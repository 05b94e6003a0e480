// When a run saves, and what becomes of it: cadence, beside training or in its way, failures, numbers.
#pragma once
#include "train/async_saver.h"
#include "train/trainer.h"

namespace trireme {

// Checks that every save passes, on all ranks. They throw if the state must not be saved.
struct SaveChecks {
  std::function<void(int64_t step)> before;  // checks data and weights
  std::function<void(int64_t step)> agree;   // compares replicas, after the state was copied
  CompleteManifest complete;                 // adds the trainer's records to a manifest
};

class Saves {
 public:
  // Saves of `steps` done so far are there already. Everything given outlives this.
  Saves(const RunSpec&, const TrainOptions&, const TrainHooks&, const StageRunner&, CommSet&,
        SaveChecks = {});

  // What a resume found: the newest complete checkpoint, and the step from which this call goes on.
  void start_from(int64_t step, const fs::path& folder);

  // ---- on all ranks, in this order after each step ----
  void step_took(double seconds) { step_s_.push_back(seconds); }
  bool due(int64_t step) const;
  // `step`, which ends now, is saved whatever the cadence says.
  void want(int64_t step) { wanted_ = step; }
  // Waits until the save in progress has ended.
  void settle();
  void save(int64_t step);
  // Takes note of what has ended. Two saves that fail in a row end the run.
  void look();
  // The end of the run: `step` is saved, and on disk, when it returns.
  void finish(int64_t step);

  // Rank 0: seconds since last asked: that training stood still for saves; that the saves which ended took to
  // write.
  std::optional<double> take_stall_s() { return std::exchange(stall_s_, {}); }
  std::optional<double> take_write_s() { return std::exchange(write_s_, {}); }

  const fs::path& newest() const { return newest_; }  // complete; rank 0
  int64_t saved() const { return saved_; }            // step of that
  // "the checkpoint of step 3 stays, and ...": what an error of `step` leaves.
  std::string what_stays() const;

 private:
  bool first() const { return comms_.rank() == 0; }
  void note(const std::string& line) const;
  void begin(int64_t step, bool last);
  void in_the_way(int64_t step);
  void tell(bool last);  // of saves that have ended
  void ended(const SaveEnd&, bool last);
  void plan_next(int64_t step, double stall_s);

  const RunSpec& run_;
  const TrainHooks& hooks_;
  const StageRunner& runner_;
  CommSet& comms_;
  const SaveChecks checks_;
  std::optional<AsyncSaver> saver_;  // none: training waits
  PhaseHook hook_;
  double mtbf_s_;                  // of the whole world
  int64_t asked_ = 0, saved_ = 0;  // steps: last one begun; newest complete one
  int64_t next_ = 0;               // "auto": step of the next save
  int64_t wanted_ = -1;
  double last_write_s_ = 0;
  int failures_ = 0;  // in a row
  bool told_memory_ = false;
  fs::path newest_;
  std::vector<double> step_s_;  // since the last save
  std::optional<double> stall_s_, write_s_;
};

}  // namespace trireme
