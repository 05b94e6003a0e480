// metrics.jsonl: one JSON object per step (DESIGN.md section 5).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "trace/ledger.h"

namespace trireme {

struct StepMetrics {
  int64_t step = 0;  // from 1
  double loss = 0, grad_norm = 0, lr = 0;
  int64_t tokens = 0;  // target tokens of the step
  double step_s = 0, tokens_per_s = 0;
  double mfu = 0, hfu = 0;  // 0-1; 0 = the peak of this machine is not known
  BucketBytes peak{};       // peak bytes of the step by bucket, on the rank that takes the most,
  int64_t peak_total = 0;   // of the total,
  BucketBytes at_peak{};    // and what that peak was made of
  double data_s = 0, forward_s = 0, backward_s = 0, norm_s = 0, update_s = 0, other_s = 0;
  // Of several ranks: seconds of the step spent waiting for others and the wire (mean over ranks), and bytes
  // on the wire by collective (of the rank with the most).
  std::optional<double> comm_s;
  std::vector<std::pair<std::string, int64_t>> comm_bytes;
  // Of models of experts: what routers add to the loss, and by block the largest load of an expert (in means)
  // and the share of choices that were dropped; where ranks divide them the largest load of a rank, in means.
  std::optional<double> aux_loss, z_loss;
  std::vector<double> expert_load, dropped, ep_load;
  std::optional<double> loss_scale;  // where the precision needs one;
  bool skipped = false;              // nothing moved: gradients overflowed, or the step was a spike
  std::optional<double> eval_loss;   // nats per token on the held-out data, where this step evaluated
  std::vector<std::pair<std::string, double>> eval_losses;  // by shard, where there are several
  std::vector<std::pair<std::string, double>> tasks;        // train.tasks: by "task/metric", as eval_loss
  std::vector<std::pair<std::string, int64_t>> sequences;   // drawn up to here from each shard of a mixture
  // Since the line before: seconds that training stood still for a checkpoint, seconds from there until it
  // was complete on disk.
  std::optional<double> checkpoint_stall_s, checkpoint_write_s;
  bool noise_measured = false;        // in this step,
  std::optional<double> noise_scale;  // and the running estimate in sequences; none while noise hides it
};

std::string to_json_line(const StepMetrics&);

// The same numbers by tag, "memory/weights", for writers of curves; what a step does not have is left out.
std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics&);

// Drops lines of a file of JSON lines that have no "step", or one after `last_step`, and half a line at its
// end.
void keep_lines_up_to(const fs::path&, int64_t last_step);

// Appends whole lines. Opening at step k drops what an interrupted run wrote beyond it (steps > k, half a
// line).
class MetricsFile {
 public:
  MetricsFile(fs::path, int64_t last_step);
  void write(const StepMetrics&);
  // To the line that write() wrote last, which stays whole whenever the process ends: what the save after it
  // cost, as last_checkpoint_stall_s and last_checkpoint_write_s. None: nothing is added.
  void add_last_save(std::optional<double> stall_s, std::optional<double> write_s);

 private:
  fs::path path_;
  bool written_ = false;
};

}  // namespace trireme
