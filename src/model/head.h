// Final norm, output projection and loss: the last layer of the last stage.
#pragma once
#include "model/norm.h"
#include "model/tensor_parallel.h"

namespace trireme {

// Cross-entropy is fused with its gradient, and logits are never stored whole in f32:
// - bf16, f16: logits are computed once, stored in that type and overwritten by their gradient in place;
// - f32: kRows rows of logits at a time live in one scratch block; each block's input gradient is kept [N,
// hidden],
//   and its share of the weight gradient is summed into a buffer [vocab, hidden] of the microbatch, which
//   backward_weight adds to the gradient. So the weight's sum over microbatches keeps the order of the W
//   actions.
//
// Ranks of tp divide the vocabulary: each has its columns of the logits, and of a row three numbers go round:
// its largest logit, the sum of exponentials, and the target's logit. The input's gradient is summed over the
// ranks. With TensorPlace::sequence the input is this rank's rows: normed, then gathered.
class Head : public Layer {
 public:
  static constexpr int64_t kRows = 1024;

  // Where its weight lies: its own, the embedding's of this rank, or a copy of another stage's.
  enum class Weight : uint8_t { own, tied, copy };
  Head(Norm norm, int64_t vocab, int64_t hidden, Weight where, float init_std, TensorPlace tp = {});
  std::string_view name() const override { return "head"; }
  void declare(std::vector<ParamDecl>&) const override;
  void bind(ParamSet&) override;
  Owned forward(Ctx&, const Tensor& x,
                Saved&) override;  // fills ctx.token_loss or ctx.logits, returns nothing
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) override;  // dy is ignored
  void backward_weight(Ctx&, Saved&) override;

 private:
  void whole(Ctx&, Owned n, Saved&) const;
  void by_blocks(Ctx&, Owned n, Saved&) const;
  Owned picked_rows(Ctx&, const Tensor& x) const;
  void write_logits(Ctx&, const Tensor& n) const;
  Owned summed(Ctx&, Owned dn) const;
  Owned logits_block(Ctx&, Bucket, int64_t rows) const;
  void cross_entropy(Ctx&, const Tensor& logits, int64_t first_row) const;
  void split_cross_entropy(Ctx&, const Tensor& logits, int64_t first_row) const;
  int64_t columns() const { return weight_->stored[0]; }  // of this rank's logits

  Norm norm_;
  int64_t vocab_, hidden_;
  Weight where_;
  float init_std_;
  TensorPlace tp_;
  Param* weight_ = nullptr;
};

}  // namespace trireme
