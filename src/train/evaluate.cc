// Evaluation of a shard, and a run's weights for it.
#include <algorithm>
#include <cmath>

#include "train/batches.h"
#include "train/checkpointing.h"
#include "train/teller.h"
#include "train/trainer.h"

namespace trireme {

int teller_of(const StageRunner& runner, int replica, int part) {
  if (!runner.comms() || runner.passes().divided()) return 0;
  const Mesh& mesh = runner.comms()->mesh();
  int rank = 0;
  while (mesh.coord(rank, Axis::dp) != replica || mesh.coord(rank, Axis::cp) != part ||
         mesh.coord(rank, Axis::pp) != runner.sharing().head_rank())
    rank++;
  return rank;
}

// Batch b is replica b % dp's. Sums are added in order of batches, so how many ranks there are changes
// nothing.
EvalResult evaluate_shard(StageRunner& runner, const RunSpec& run, const fs::path& shard,
                          int64_t most_batches, const std::function<void(int64_t, int64_t)>& progress) {
  EvalWindows windows(run, shard);
  int64_t micro = run.batch.micro, n = windows.count();
  if (most_batches > 0 && most_batches < (n + micro - 1) / micro) n = most_batches * micro;
  if (n == 0)
    bad_request("{} holds no whole window of seq_len = {} tokens to evaluate on", shard.string(),
                run.data.seq_len);
  // A divided model's ranks evaluate one batch together, and rank 0 has its sum.
  const bool alone = !runner.comms() || runner.passes().divided();
  const Sharing s = alone ? Sharing() : runner.sharing();
  const int64_t batches = (n + micro - 1) / micro, rounds = (batches + s.dp - 1) / s.dp;
  const int ranks = alone ? 1 : runner.comms()->world();
  std::vector<TokenLoss> mine(static_cast<size_t>(rounds)), all(size_t(rounds * ranks));
  for (int64_t k = 0; k < rounds; k++) {
    const int64_t batch = k * s.dp + s.dp_rank, first = std::min(batch, batches - 1) * micro;
    // With sharded weights, or experts over ranks, every rank takes part in every round, the last one for
    // nothing.
    if (batch >= batches && !s.together()) continue;
    TokenLoss part =
        runner.evaluator().evaluate(std::min(micro, n - first), run.data.seq_len, windows.from(first));
    if (batch < batches) mine[size_t(k)] = part;
    if (progress) progress(std::min(n, (k + 1) * s.dp * micro), n);
  }
  if (!alone)
    gather_bytes(runner.comms()->control(), std::as_bytes(std::span(mine)),
                 std::as_writable_bytes(std::span(all)));
  else
    all = mine;
  EvalResult total;
  double sum = 0;
  for (int64_t b = 0; b < batches; b++)
    for (int part = 0; part < s.cp.size; part++) {
      const auto& told = all[size_t(teller_of(runner, int(b % s.dp), part) * rounds + b / s.dp)];
      sum += told.sum;
      total.tokens += told.tokens;
    }
  if (total.tokens == 0)
    bad_request("{}: none of the tokens to evaluate on is a target of the loss mask", shard.string());
  total.loss = sum / double(total.tokens);
  if (!std::isfinite(total.loss)) {
    // Every rank knows all sums: all repeat the first round that has one which is not finite.
    int64_t bad = 0;
    const auto is_bad = [&](int64_t k) {
      for (int r = 0; r < ranks; r++)
        if (!std::isfinite(all[size_t(r * rounds + k)].sum)) return true;
      return false;
    };
    while (bad + 1 < rounds && !is_bad(bad)) bad++;
    const int64_t first = std::min(bad * s.dp + s.dp_rank, batches - 1) * micro;
    runner.evaluator().find_nonfinite_loss(std::min(micro, n - first), run.data.seq_len, windows.from(first));
  }
  return total;
}

int64_t load_newest(StageRunner& runner, const fs::path& run_dir) {
  Found found = find_newest(checkpoint_root(run_dir));
  if (!found.newest)
    bad_request("{} holds no complete checkpoint{}{}", run_dir.string(), found.damaged.empty() ? "" : ": ",
                found.damaged.empty() ? "" : found.damaged.front());
  load_checkpoint(runner, *found.newest, Load::weights);
  return found.newest->manifest().step;
}

}  // namespace trireme
