// A feed-forward layer of experts (Shazeer et al. 2017, 1701.06538; Mixtral, 2401.04088): a router sends each
// token to k of E experts, and the layer adds up what they answer, weighted. docs/moe.md derives the three
// passes.
//
// Without a capacity nothing is dropped, with one it is still N tokens that make R = N k rows, whatever the
// counts: so memory is a function of shapes alone and meta books what a run takes.
#pragma once
#include <optional>

#include "model/expert_exchange.h"
#include "model/experts.h"
#include "model/mlp.h"
#include "model/routing.h"

namespace trireme {

// A router's matrix [experts, hidden]: its logits and its gradients. With a bias, f32 [experts] that is added
// to the scores in choosing: a buffer, which balancing moves and no gradient (DeepSeek-V3, 2412.19437 section
// 2.1.2; Wang et al. 2024, 2408.15664).
class Router {
 public:
  // sum_grad: axes of ranks that each route a part of the rows.
  Router(std::string name, int64_t experts, int64_t hidden, float init_std, std::vector<Axis> sum_grad,
         bool bias = false);
  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);
  // x [N, hidden] -> logits f32 [N, experts]. x stays alive until backward_weight.
  Owned forward(Ctx&, const Tensor& x, Saved&) const;
  // dx [N, hidden] += dlogits (f32) W.
  void backward_input(Ctx&, const Tensor& dlogits, const Tensor& dx, Saved&) const;
  void backward_weight(Ctx&, Saved&) const;
  Tensor bias() const { return bias_ ? bias_->weight : Tensor(); }

 private:
  std::string name_;
  int64_t experts_, hidden_;
  float init_std_;
  std::vector<Axis> sum_grad_;
  bool has_bias_;
  Param *weight_ = nullptr, *bias_ = nullptr;
};

// Losses that even out the experts' load, and how much an expert takes at most (docs/moe.md). While training.
enum class BalanceUnit : uint8_t { sequence, microbatch, global };
struct Balance {
  double aux_loss = 0, z_loss = 0;  // factors; 0: none
  double capacity = 0;              // of the mean number of choices; 0: all
  BalanceUnit unit = BalanceUnit::sequence;
  bool losses() const { return aux_loss > 0 || z_loss > 0; }
};

class Moe {
 public:
  struct Sizes {
    int64_t block;  // number of this layer's block
    int64_t hidden, experts, experts_per_token, ffn;
    int64_t shared_ffn = 0;    // of an expert that every token visits; 0 = none
    bool shared_gate = false;  // its answer times sigmoid(w . x) (qwen2_moe)
    bool normalise = true;     // a token's weights sum to 1
    bool sigmoid = false;      // scores, else softmax
    bool bias = false;         // of the router
    int64_t groups = 1, top_groups = 1;
    bool group_pairs = false;  // a group is worth its two largest scores
    float scale = 1;           // of the weights
    float init_std, out_init_std;
    double resid_pdrop = 0;
    Balance balance;
    // Who has which experts, and which rows of a microbatch this rank routes: with tp each its own part of
    // them.
    AxisPlace ep;
    TensorPlace tp;
  };
  Moe(const std::string& name, const Sizes&);
  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);
  // x [N, hidden] -> residual + moe(x).
  Owned forward(Ctx&, const Tensor& x, const Tensor& residual, Saved&) const;
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) const;
  void backward_weight(Ctx&, Saved&) const;
  // "u" and "a", of the experts and of the shared one (Layer::let_go). The router's choices are kept.
  void let_go(const Recompute&, Saved&) const;
  void again(Ctx&, const Tensor& x, Saved&) const;
  bool keeps_input(const Ctx&) const { return false; }

 private:
  RouteScore score() const { return sizes_.sigmoid ? RouteScore::sigmoid : RouteScore::softmax; }
  void choose(Ctx&, const Tensor& logits, const Tensor& ids, const Tensor& weights) const;
  void order(Ctx&, const void* key, const Tensor& ids, int64_t experts, Saved&) const;
  int64_t unit_tokens(const Ctx&, int64_t tokens) const;
  bool units_are_whole(const Ctx&) const;
  int64_t capacity(int64_t unit) const;
  Owned without_dropped(Ctx&, const Tensor& ids) const;
  std::vector<int64_t> choices_before(Ctx&, std::span<const int32_t> ids) const;
  void count(Ctx&, const Tensor& load, const Tensor& offsets) const;
  void balance(Ctx&, const Tensor& logits, const Tensor& ids, Saved&) const;
  RouteBackwardArgs balanced(const Ctx&, const Saved&) const;
  std::vector<double> choices_of_units(Ctx&, const Tensor& choices) const;
  bool spread() const { return sizes_.ep.size > 1 || sizes_.tp.size > 1; }
  bool sliced() const { return sizes_.tp.size > 1 && !sizes_.tp.sequence; }
  Tensor own_rows(const Tensor& rows) const;
  Owned all_rows(Ctx&, Owned own) const;
  Owned completed(Ctx&, const Tensor& rows) const;
  int64_t first_row(const Tensor& own) const;
  int64_t unit_offset(const Tensor& own) const;
  Owned answers(Ctx&, const Tensor& x, Saved&, const std::function<void()>& between) const;
  Owned rows_backward(Ctx&, Saved&, const std::function<void()>& between) const;
  Owned add_shared(Ctx&, const Tensor& x, Owned y, const Tensor& add, Saved&) const;
  Owned shared_backward(Ctx&, const Tensor& dy, const Tensor& dx, Saved&) const;
  Owned answers_backward(Ctx&, const void* key, const Tensor& dy, const RouteBackwardArgs& how, Saved&) const;

  std::string name_;
  Sizes sizes_;
  Router router_;
  ExpertFfn experts_;
  ExpertExchange exchange_;
  std::optional<Mlp> shared_;
  std::optional<Router> shared_gate_;
  Dropout resid_;
};

}  // namespace trireme
