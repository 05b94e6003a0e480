#include <algorithm>
#include <cmath>

#include "optim/optimizer.h"

namespace trireme {
namespace {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const AdamWOptions& o) : o_(o) {}

  std::vector<StateDecl> state() const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }

  // One launch for each run of neighbours that decay alike. Padding is left alone: it stays zero.
  void step(Kernels& k, const ParamSet& set, const Unit& unit, const FlatState& flat, const UpdateInput& in,
            Stream stream) override {
    const Range own = own_part(unit, flat.place);
    for (size_t i = unit.first, j; i < unit.last; i = j) {
      bool decay = set.params[i].decl.decay;
      for (j = i + 1; j < unit.last && set.params[j].decl.decay == decay;) j++;
      int64_t end_of_run = set.params[j - 1].offset + set.params[j - 1].numel();
      int64_t begin = std::max(own.begin, set.params[i].offset - unit.offset);
      int64_t end = std::min(own.end, end_of_run - unit.offset);
      if (begin < end) launch(k, set, unit, flat, {begin - own.begin, end - own.begin}, decay, in, stream);
    }
  }

 private:
  // r: elements of the rank's own part.
  void launch(Kernels& k, const ParamSet& set, const Unit& unit, const FlatState& flat, const Range& r,
              bool decay, const UpdateInput& in, Stream stream) const {
    auto part = [&](const Tensor& buffer) {
      return flat.own(buffer, set, unit).narrow(0, r.begin, r.size());
    };
    bool copy = flat.weights.data != flat.master.data;
    k.run(AdamWArgs{.master = part(flat.master),
                    .exp_avg = part(flat.state[0]),
                    .exp_avg_sq = part(flat.state[1]),
                    .grad = part(flat.grads),
                    .weight = copy ? part(flat.weights) : Tensor(),
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

Tensor FlatState::own(const Tensor& buffer, const ParamSet& set, const Unit& u) const {
  const Range part = own_part(u, place);
  return whole(buffer, set) ? buffer.narrow(0, u.offset + part.begin, part.size())
                            : buffer.narrow(0, u.offset / place.shards, part.size());
}

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& o) {
  return std::make_unique<AdamW>(o);
}

}  // namespace trireme
