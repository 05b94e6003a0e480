// Evaluation: the training layers run forward alone. A result that is not finite ends it, with the cause.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "runtime/stage_passes.h"

namespace trireme {

struct TokenLoss {
  double sum = 0;
  int64_t tokens = 0;
};

class Evaluator {
 public:
  // forward: the program of a forward pass (lower_forward). All outlive this.
  Evaluator(const StageMemory& memory, StagePasses& passes, const Program& forward)
      : memory_(memory), passes_(passes), forward_(forward) {}

  // each: empty, or room for the sum of each sequence's token losses. On all ranks, whatever the sequences,
  // where weights are sharded (ZeRO 3). In training each rank has its own sequences; if divided(), all
  // ranks evaluate rank 0's.
  TokenLoss evaluate(int64_t sequences, int64_t seq, const FillBatch&, std::span<double> each = {});
  // The most likely token after each sequence's token `last[i]`, of the ids below `vocab`, in training. On
  // all ranks where they take part together. A sequence whose logits are another rank's (pp, cp) gets 0; one
  // with a logit that is not finite gets -1.
  void most_likely_next(int64_t sequences, int64_t seq, const FillBatch&, std::span<const int64_t> last,
                        int64_t vocab, std::span<int32_t> ids);
  // Next-token logits f32 [seq, vocab] of one sequence, on the host; all rows.
  void logits(std::span<const int32_t> tokens, std::vector<float>& out);
  // Call on all ranks after an evaluation whose loss is not finite, each rank with its own batch. Throws
  // Error naming the weight, or the layer and op whose output shows it first.
  [[noreturn]] void find_nonfinite_loss(int64_t sequences, int64_t seq, const FillBatch&);

 private:
  bool own_losses(int64_t sequences, int64_t seq, const FillBatch&, bool watch, TokenLoss&,
                  std::span<double> each);
  TokenLoss evaluate_divided(int64_t sequences, int64_t seq, const FillBatch&, std::span<double> each);

  const StageMemory& memory_;
  StagePasses& passes_;
  const Program& forward_;
  std::vector<float> token_losses_;
};

}  // namespace trireme
