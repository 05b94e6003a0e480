#include "optim/adamw.h"

#include <algorithm>
#include <cmath>

namespace trireme {

// One launch for each run of neighbours that decay alike. Padding is left alone: it stays zero.
void AdamW::step(Kernels& k, const ParamSet& set, const Unit& unit, const FlatState& flat,
                 const UpdateInput& in, Stream stream) {
  const Range own = own_part(unit, flat.place_of(unit));
  auto alike = [&](size_t i, size_t j) {
    const ParamDecl &a = set.params[i].decl, &b = set.params[j].decl;
    return a.decay == b.decay && (!others_ || a.hidden_matrix == b.hidden_matrix);
  };
  for (size_t i = unit.first, j; i < unit.last; i = j) {
    for (j = i + 1; j < unit.last && alike(i, j);) j++;
    if (others_ && set.params[i].decl.hidden_matrix) continue;
    int64_t end_of_run = set.params[j - 1].offset + set.params[j - 1].numel();
    int64_t begin = std::max(own.begin, set.params[i].offset - unit.offset);
    int64_t end = std::min(own.end, end_of_run - unit.offset);
    if (begin < end) launch(k, set, unit, flat, i, {begin - own.begin, end - own.begin}, in, stream);
  }
}

// r: elements of the rank's own part, of a run of parameters from the one numbered `first` on.
void AdamW::launch(Kernels& k, const ParamSet& set, const Unit& unit, const FlatState& flat, size_t first,
                   const Range& r, const UpdateInput& in, Stream stream) const {
  auto part = [&](const Tensor& buffer) { return flat.own(buffer, set, unit).narrow(0, r.begin, r.size()); };
  const bool copy = flat.weights.data != flat.master.data;
  const bool decay = set.params[first].decl.decay;
  k.run(AdamWArgs{.master = part(flat.master),
                  .exp_avg = part(flat.state[0]),
                  .exp_avg_sq = others_ ? flat.state[1].narrow(
                                              0, others_range(set, unit, flat.place, first).begin, r.size())
                                        : part(flat.state[1]),
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

Tensor FlatState::own(const Tensor& buffer, const ParamSet& set, const Unit& u) const {
  const Range part = own_part(u, place_of(u));
  return whole(buffer, set) ? buffer.narrow(0, u.offset + part.begin, part.size())
                            : buffer.narrow(0, u.part_offset, part.size());
}

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& o) {
  return std::make_unique<AdamW>(o, false);
}

}  // namespace trireme
