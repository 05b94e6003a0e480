#include <cmath>

#include "optim/optimizer.h"

namespace trireme {
namespace {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const AdamWOptions& o) : o_(o) {}

  std::vector<StateDecl> state() const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }

  // One launch for each run of neighbours that decay alike.
  void step(Kernels& k, const ParamSet& set, const FlatState& flat, const UpdateInput& in,
            Stream stream) override {
    size_t n = set.params.size();
    for (size_t i = 0, j; i < n; i = j) {
      bool decay = set.params[i].decl.decay;
      for (j = i + 1; j < n && set.params[j].decl.decay == decay;) j++;
      int64_t begin = set.params[i].offset, end = set.params[j - 1].offset + set.params[j - 1].numel();
      launch(k, flat, begin, end - begin, decay, in, stream);
    }
  }

 private:
  void launch(Kernels& k, const FlatState& flat, int64_t begin, int64_t n, bool decay, const UpdateInput& in,
              Stream stream) const {
    bool copy = flat.weights.data != flat.master.data;
    k.run(AdamWArgs{.master = flat.master.narrow(0, begin, n),
                    .exp_avg = flat.state[0].narrow(0, begin, n),
                    .exp_avg_sq = flat.state[1].narrow(0, begin, n),
                    .grad = flat.grads.narrow(0, begin, n),
                    .weight = copy ? flat.weights.narrow(0, begin, n) : Tensor(),
                    .lr = float(in.lr),
                    .beta1 = float(o_.beta1),
                    .beta2 = float(o_.beta2),
                    .eps = float(o_.eps),
                    .weight_decay = decay ? float(o_.weight_decay) : 0.0f,
                    .bias1 = float(1 - std::pow(o_.beta1, double(in.step))),
                    .bias2 = float(1 - std::pow(o_.beta2, double(in.step))),
                    .grad_scale = in.grad_scale},
          stream);
  }
  AdamWOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& o) {
  return std::make_unique<AdamW>(o);
}

}  // namespace trireme
