// Low-rank adapters of linear layers (Hu et al. 2021, arXiv 2106.09685, section 4.1). To y = x W^T + b, with
// W frozen, they add s (x A^T) B^T. A [r, in] starts as noise, B [out, r] as zero, s = alpha / r.
//
// Where tp divides W, the same formulas hold for a rank's part, with what its sums already add up:
//   by columns   A is whole, B has the rank's rows; each rank's dA and its part of dx are summands
//   by rows      A has the rank's columns, B is whole; x A^T, and so dB and the part of y, are summands
// The inner products h = s x A^T and dh = s dy B, [N, r] each, are kept for the weight gradients, which so
// need no weights (ZeRO 3 has released them).
#pragma once
#include <string>
#include <vector>

#include "model/layer.h"
#include "spec/run_spec.h"

namespace trireme {

// Freezes what is declared, and declares an adapter of each matrix that lora.targets chooses. decls: a list
// for each layer of a rank. Nothing where lora.rank is 0.
void add_adapters(std::vector<std::vector<ParamDecl>>& decls, const LoraSpec&);
// bad_request if a pattern of lora.targets names no matrix, or all of them choose none. decls: the whole
// model's.
void refuse_idle_targets(const std::vector<std::vector<ParamDecl>>& decls, const LoraSpec&);

// Parameters of all adapters of the model.
int64_t adapter_parameters(const ModelSpec&, const LoraSpec&);

// A matrix of a linear layer as this rank computes it.
struct AdaptedPart {
  std::string name;      // the matrix's, without ".weight"
  int64_t column = 0;    // its first column of y
  int64_t rows = 0;      // number of its columns of y, which are rows of B
  int64_t first = 0;     // row of B where they begin
  bool complete = true;  // B has no other rows
};
std::string adapter_name(std::string_view matrix, char which);  // 'a' or 'b': the parameter's name

// The adapters of one layer's matrices, perhaps of some of them. Their A are neighbours in memory: one
// product.
class Adapters {
 public:
  void bind(ParamSet&, const std::vector<AdaptedPart>&);
  bool any() const { return !all_.empty(); }
  int64_t width() const { return rank_ * int64_t(all_.size()); }  // columns of h and dh

  // x [N, in], y [N, out]: h = s x A^T [N, width]; y += h B^T, by the columns of each.
  void forward(Ctx&, const Tensor& x, const Tensor& y, const Tensor& h) const;
  // dh = s dy B [N, width]; dx += dh A.
  void backward_input(Ctx&, const Tensor& dy, const Tensor& dx, const Tensor& dh) const;
  // dA += dh^T x; dB += dy^T h.
  void backward_weight(Ctx&, const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& dh) const;

 private:
  struct One {
    AdaptedPart part;
    Param *a, *b;
  };
  Tensor all_a(Tensor Param::*) const;                   // [width, in]
  static Tensor rows_of_b(const One&, Tensor Param::*);  // [rows, rank]
  Tensor columns(const Tensor& h, size_t one) const { return h.narrow(1, int64_t(one) * rank_, rank_); }
  void scale(Ctx&, const Tensor& h) const;

  std::vector<One> all_;
  float scale_ = 1;
  int64_t rank_ = 0;
};

}  // namespace trireme
