#include "optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace trireme {

struct AdamW::Update {
  const AdamWOptions& o;
  bool others;
  Kernels& k;
  const ParamSet& set;
  const Unit& unit;
  const FlatState& flat;
  const StatePiece* piece;  // none: state is in FlatState's buffers
  const UpdateInput& in;
  Stream stream;

  bool small() const { return o.moments != DType::f32; }

  // One launch for each run of neighbours that decay and learn alike; with bf16 moments one for each
  // parameter, whose elements are numbered for their rounding. Padding is left alone: it stays zero.
  void run(Range own) const {
    auto alike = [&](size_t i, size_t j) {
      const ParamDecl &a = set.params[i].decl, &b = set.params[j].decl;
      return !small() && a.decay == b.decay && (!others || a.hidden_matrix == b.hidden_matrix) &&
             lr_factor(a) == lr_factor(b);
    };
    const int64_t first = own.begin;
    if (piece) own = {first + piece->own.begin, first + piece->own.end};
    // A unit of experts has hundreds of parameters, and is updated in hundreds of pieces.
    const auto ends_before = [&](const Param& p, int64_t at) {
      return p.offset + p.numel() - unit.offset <= at;
    };
    const auto begin_of = [&](size_t i) { return set.params[i].offset - unit.offset; };
    const auto all = set.params.begin();
    const auto from =
        std::lower_bound(all + int64_t(unit.first), all + int64_t(unit.last), own.begin, ends_before);
    for (size_t i = size_t(from - all), j; i < unit.last && begin_of(i) < own.end; i = j) {
      for (j = i + 1; j < unit.last && begin_of(j) < own.end && alike(i, j);) j++;
      if (others && set.params[i].decl.hidden_matrix) continue;
      const int64_t end_of_run = set.params[j - 1].offset + set.params[j - 1].numel();
      const int64_t begin = std::max(own.begin, begin_of(i));
      const int64_t end = std::min(own.end, end_of_run - unit.offset);
      const int64_t in_box = begin - begin_of(i);
      if (begin < end) launch(i, {begin - first, end - first}, in_box);
    }
  }

  double lr_factor(const ParamDecl& d) const { return has_embed_lr(d, o.tied) ? o.embed_lr : 1; }

  // r: elements of the rank's own part.
  Tensor part(const Tensor& buffer, const Range& r) const {
    return flat.own(buffer, set, unit).narrow(0, r.begin, r.size());
  }
  Tensor moment(size_t i, size_t first, const Range& r) const {
    if (piece) return piece->state[i].narrow(0, r.begin - piece->own.begin, r.size());
    if (i == 0 || !others) return part(flat.state[i], r);
    return flat.state[i].narrow(0, others_range(set, unit, flat.place, first).begin, r.size());
  }
  Tensor master(const Range& r) const {
    if (!piece || !piece->master) return part(flat.master, r);
    return piece->master->narrow(0, r.begin - piece->own.begin, r.size());
  }

  // The random bits of a moment are a function of (seed, step, name, element of the whole tensor), so every
  // layout rounds alike.
  void number(AdamWArgs& a, const Param& p, int64_t in_box) const {
    const Shape& box = p.box.extent;
    require(box.rank == 1 || box.rank == 2, "a parameter with bf16 moments has one or two dims");
    a.key = rng_key(o.seed, uint64_t(in.step), "moments of " + p.decl.name);
    a.first = in_box;
    a.corner = p.box.offset[0];
    a.row = box.numel();  // whole rows are side by side in the tensor too
    a.stride = box.numel();
    if (box.rank == 1) return;
    a.stride = p.decl.global[1];
    a.corner = p.box.offset[0] * a.stride + p.box.offset[1];
    a.row = box[1] == a.stride ? box.numel() : box[1];
  }

  // Updates a run of parameters that begins with number `first`; in_box: its element at which r begins.
  void launch(size_t first, const Range& r, int64_t in_box) const {
    const bool copy = flat.weights.data != flat.master.data;
    const bool decay = set.params[first].decl.decay;
    AdamWArgs a{.master = master(r),
                .exp_avg = moment(0, first, r),
                .exp_avg_sq = moment(1, first, r),
                .grad = part(flat.grads, r),
                .weight = copy ? part(flat.weights, r) : Tensor(),
                .lr = float(in.lr * lr_factor(set.params[first].decl)),
                .beta1 = float(o.beta1),
                .beta2 = float(o.beta2),
                .eps = float(o.eps),
                .weight_decay = decay ? float(o.weight_decay) : 0.0f,
                .bias1 = float(1 - std::pow(o.beta1, double(in.step))),
                .bias2 = float(1 - std::pow(o.beta2, double(in.step))),
                .grad_scale = in.grad_scale};
    if (small()) number(a, set.params[first], in_box);
    k.run(a, stream);
  }
};

void AdamW::step(Kernels& k, const ParamSet& set, const Unit& unit, const FlatState& flat,
                 const UpdateInput& in, Stream stream) {
  Update{o_, others_, k, set, unit, flat, nullptr, in, stream}.run(own_part(unit, flat.place_of(unit)));
}

void AdamW::step_piece(Kernels& k, const ParamSet& set, const Unit& unit, const FlatState& flat,
                       const StatePiece& piece, const UpdateInput& in, Stream stream) {
  require(!others_, "beside Muon, AdamW's state is in memory");
  Update{o_, others_, k, set, unit, flat, &piece, in, stream}.run(own_part(unit, flat.place_of(unit)));
}

bool has_embed_lr(const ParamDecl& d, bool tied) {
  if (d.global.rank == 1) return true;
  return d.name.starts_with("embed.") && !(tied && d.name == "embed.tokens.weight");
}

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& o) {
  return std::make_unique<AdamW>(o, false);
}

}  // namespace trireme
