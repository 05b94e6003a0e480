// y = x W^T + b. One matrix, or several declared side by side (q, k, v; gate, up) that are computed as one.
#pragma once
#include <string>

#include "model/adapters.h"
#include "model/tensor_parallel.h"

namespace trireme {

struct Fp8View;  // fp8.h

class Linear {
 public:
  struct Part {
    std::string name;  // "blocks.0.attn.q": parameters are name.weight [out, in] and name.bias [out]
    int64_t out;       // of the whole model
    // Divided by columns: a part that every rank holds whole, and of which this one computes outputs
    // [first, first + used); its gradient is summed over the ranks (key/value heads that ranks share; rows
    // that each rank makes whole, to go on with a part of its own).
    bool shared = false;
    int64_t first = 0, used = 0;
  };
  Linear(std::vector<Part> parts, int64_t in, bool bias, float init_std, Divide = Divide::none,
         TensorPlace tp = {});

  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);
  int64_t out() const { return out_; }      // columns of y on this rank
  int64_t rows_out(const Tensor& x) const;  // of y, before a sum over ranks leaves each its own

  // x [N, in] -> y [N, out] (+ residual [N, out]). x stays alive until backward_weight. Divided by rows, x is
  // this rank's columns [N, in / tp], and y is summed over the ranks. With TensorPlace::sequence, x divided
  // by columns is this rank's rows, gathered here and again in backward_weight, and of y divided by rows each
  // rank gets its own.
  // gelu [N, out]: gelu(y), tanh form, of the same product; where gelu_in_product().
  Owned forward(Ctx&, const Tensor& x, Saved&, const Tensor& residual = {}, const Tensor& gelu = {}) const;
  bool gelu_in_product(const Ctx&, DType) const;
  // y, made anew.
  Owned again(Ctx&, const Tensor& x, const Tensor& residual = {}, const Tensor& gelu = {}) const;
  // dy [N, out] -> dx [N, in]; dy stays alive until backward_weight. Divided by columns, dy is this rank's
  // columns (of parts that are shared, its summand), and dx is summed over the ranks, which own_columns
  // leaves out; with sequence it is the other way round too. before [N, in]: x was gelu(before), tanh form,
  // and its gradient is what comes back; where gelu_in_back_product().
  Owned backward_input(Ctx&, const Tensor& dy, Saved&, const Tensor& before = {}) const;
  bool gelu_in_back_product(const Ctx&, DType) const;
  // dW += dy^T x; db += column sums of dy; frozen ones get nothing. Adapters (adapters.h) get theirs.
  void backward_weight(Ctx&, Saved&) const;

  // What comes to it is nobody else's, so that of 8-bit products its codes may be kept in its place.
  void input_is_its_own(bool own = true) { own_input_ = own; }
  // Does it do so in this pass? Then x need not stay alive beyond forward.
  bool keeps_codes(const Ctx&) const;

 private:
  // Neighbouring parts of whose matrices all rows are used, or one of which some are: one product.
  struct Run {
    size_t first, last;  // parts
    int64_t row, rows;   // of their matrices, put one below the other
    int64_t column;      // of y
    bool complete;       // no other rows
  };
  int64_t rows_of(const Part&) const;  // that this rank computes
  void find_runs();
  bool divided(Divide d) const { return divide_ == d && tp_.size > 1; }
  bool by_columns() const { return divided(Divide::columns) || divided(Divide::own_columns); }
  bool rows_apart(Divide d) const { return divided(d) && tp_.sequence; }  // of x, or of y
  // h, dh: as Adapters says; h may be null, and is then not kept.
  Owned compute(Ctx&, const Tensor& x, const Tensor& residual, const Tensor& gelu, const Tensor& h) const;
  void product(Ctx&, const Tensor& x, const Tensor& y, const Tensor& residual, const Tensor& gelu,
               const Tensor& h) const;
  void back_product(Ctx&, const Tensor& dy, const Tensor& dx, const Tensor& before, const Tensor& dh) const;
  // x: its codes where they were kept, else null.
  void weight_product(Ctx&, const Tensor& dy, const Tensor& x, const Fp8View* kept) const;
  const Fp8Layers* in_8_bits(const Ctx&) const;  // null: in the compute type
  const std::string& name() const { return parts_[0].name; }
  std::vector<AdaptedPart> adapted_parts() const;
  bool frozen() const { return weights_[0]->decl.frozen; }
  Tensor matrix(const Run&, Tensor Param::*) const;  // [rows, in]
  Tensor vector(const Run&, Tensor Param::*) const;  // [rows]
  bool start(Ctx&, const Run&, const std::vector<Param*>&) const;

  std::vector<Part> parts_;
  int64_t in_, out_ = 0;  // of this rank
  bool bias_, own_input_ = false;
  float init_std_;
  Divide divide_;
  TensorPlace tp_;
  std::vector<Run> runs_;
  std::vector<Param*> weights_, biases_;
  Adapters adapters_;
};

}  // namespace trireme
