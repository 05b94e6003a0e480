#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/timed.h"
#include "optim/adamw.h"
#include "optim/matrix_owners.h"

namespace trireme {
namespace {

class Muon final : public Optimizer {
 public:
  Muon(const MuonOptions& o, const ParamSet& set, const MuonRanks& ranks, Device& device, Arena& arena)
      : o_(o), adamw_(o.adamw, true), ranks_(ranks), device_(device), arena_(arena) {
    require((ranks.shard != nullptr) == (ranks.place.shards > 1) &&
                (ranks.expert_shard != nullptr) == (ranks.expert_place.shards > 1),
            "Muon's shards and their communicators disagree");
    if (ranks.shard || ranks.expert_shard) wire_ = device.stream("dp");
    const AxisPlace tp = ranks.tp ? AxisPlace{ranks.tp->size(), ranks.tp->rank()} : AxisPlace{};
    int64_t blocks = 0;
    for (const Unit& u : set.units) {
      const ShardPlace& place = u.experts ? ranks.expert_place : ranks.place;
      plans_.push_back({plan_matrices(set, u, place), plan_divided(set, u, place, tp),
                        u.experts ? ranks.expert_shard : ranks.shard});
      divide_work(set, u, plans_.back(), tp);
      blocks = std::max(blocks, plans_.back().rest.blocks());
    }
    host_.resize(size_t(blocks));
  }

  std::vector<StateDecl> state() const override {
    return {{"exp_avg"}, {.name = "exp_avg_sq", .of_hidden = false}};
  }

  void step(Kernels& k, const ParamSet& set, const Unit& unit, const FlatState& flat, const UpdateInput& in,
            Stream stream) override {
    UpdateInput others = in;
    others.lr *= o_.adamw_lr;
    adamw_.step(k, set, unit, flat, others, stream);
    const UnitPlan& plan = plan_of(set, unit);
    if (plan.rest.matrix > 0 || plan.together > 0) orthogonalise({*this, set, unit, flat, in, stream}, plan);
  }

  double waited_s() const override { return waited_s_; }

 private:
  struct UnitPlan {
    MatrixPlan matrices;
    DividedPlan divided;
    Communicator* shard = nullptr;
    // This rank's matrices (parameters): launches of OrthogonaliseArgs, and those that NewtonSchulz takes.
    std::vector<std::vector<size_t>> batches;
    std::vector<size_t> one_by_one;
    // Memory. Where ranks share matrices, of any matrix of the unit, so that all ranks book the same.
    int64_t together = 0;          // elements of the largest batch
    int64_t together_scratch = 0;  // bytes of a launch of one matrix
    NewtonSchulz::Sizes rest;
    int64_t rest_scratch = 0;  // bytes
  };

  bool in_one_launch(const Shape& s) const {
    return o_.dtype == DType::f32 && device_.kernels().orthogonalises(s[0], s[1]);
  }

  // Small matrices that one rank has whole go together into a launch. The bits of a matrix do not depend on
  // the other matrices of a launch, so ranks that share matrices, and take them one by one, get the same.
  void divide_work(const ParamSet& set, const Unit& u, UnitPlan& plan, const AxisPlace& tp) const {
    constexpr int64_t kTogether = 1 << 22;  // elements: 16 MB
    Kernels& k = device_.kernels();
    for (size_t i = u.first; i < u.last; i++) {
      if (!set.params[i].decl.hidden_matrix) continue;
      const Shape& s = set.params[i].decl.global;
      if (in_one_launch(s)) {
        OrthogonaliseArgs one{
            .x = Tensor(reinterpret_cast<std::byte*>(uintptr_t(1) << 40), {s.numel()}, DType::f32)};
        one.sides[0] = {s[0], s[1]};
        one.count = 1;
        plan.together = std::max(plan.together, s.numel());
        plan.together_scratch = std::max(plan.together_scratch, k.scratch_of(one));
      } else {
        plan.rest.cover(s[0], s[1]);
        plan.rest_scratch = std::max(plan.rest_scratch, NewtonSchulz::scratch(k, o_.dtype, s[0], s[1]));
      }
    }
    const bool shared = plan.shard || plan.divided.most_sent > 0;
    int64_t elements = 0;
    for (size_t matrix : plan.matrices.matrices) {
      const Shape& s = set.params[matrix].decl.global;
      if (const MatrixBox* b = plan.divided.box_of(matrix); b && b->owner != tp.rank) continue;
      if (!in_one_launch(s)) {
        plan.one_by_one.push_back(matrix);
        continue;
      }
      const bool fits = !plan.batches.empty() && elements + s.numel() <= kTogether &&
                        plan.batches.back().size() < size_t(OrthogonaliseArgs::kMost);
      if (shared || !fits) {
        plan.batches.emplace_back();
        elements = 0;
      }
      plan.batches.back().push_back(matrix);
      elements += s.numel();
      plan.together = std::max(plan.together, elements);
    }
  }

  // One unit's update.
  struct Update {
    const Muon& muon;
    const ParamSet& set;
    const Unit& unit;
    const FlatState& flat;
    const UpdateInput& in;
    Stream stream;

    Tensor part(const Tensor& buffer, const MatrixPiece& piece) const {
      return flat.own(buffer, set, unit).narrow(0, piece.own, piece.of_matrix.size());
    }
    void momentum(const MatrixPiece& piece, const Tensor& u) const {
      muon.device_.kernels().run(MuonMomentumArgs{.momentum = part(flat.state[0], piece),
                                                  .grad = part(flat.grads, piece),
                                                  .update = u,
                                                  .beta = float(muon.o_.momentum),
                                                  .grad_scale = in.grad_scale,
                                                  .nesterov = muon.o_.nesterov},
                                 stream);
    }
    void apply(const MatrixPiece& piece, const Tensor& o) const {
      const Param& p = set.params[piece.param];
      const bool copy = flat.weights.data != flat.master.data;
      const double scale = adjusted(muon.o_.adjust, p.decl.global[0], p.decl.global[1]);
      const double decay = p.decl.decay ? muon.o_.weight_decay : 0;
      muon.device_.kernels().run(MuonApplyArgs{.master = part(flat.master, piece),
                                               .update = o,
                                               .weight = copy ? part(flat.weights, piece) : Tensor(),
                                               .lr = float(in.lr * scale),
                                               .keep = float(1 - in.lr * decay)},
                                 stream);
    }
  };

  // What travels, in the type of the products; none where nothing does. Over the shard group pieces of this
  // rank and of its matrices, over tp boxes of this rank and of its matrices.
  struct Travel {
    Travel(const Muon& m, const UnitPlan& plan) {
      auto buffer = [&](int64_t n) {
        return n > 0 ? Owned(m.arena_, Bucket::comm, {n}, m.o_.dtype) : Owned();
      };
      if (plan.shard) mine = buffer(plan.matrices.most_sent), owned = buffer(plan.matrices.most_received);
      boxes = buffer(plan.divided.most_sent), wholes = buffer(plan.divided.most_received);
    }
    Owned mine, owned, boxes, wholes;
  };

  const UnitPlan& plan_of(const ParamSet& set, const Unit& unit) const {
    const auto i = size_t(&unit - set.units.data());
    require(i < plans_.size(), "a unit of another set");
    return plans_[i];
  }

  void orthogonalise(const Update& update, const UnitPlan& plan) {
    Travel travel(*this, plan);
    if (plan.shard) {
      for (const MatrixPiece& piece : plan.matrices.mine)
        update.momentum(piece, travel.mine->narrow(0, piece.at, piece.of_matrix.size()));
      to_owners(update, plan, travel, true);
    }
    const bool divided = bool(travel.boxes);
    if (divided) {
      for (const MatrixBox& b : plan.divided.boxes)
        begin(update, plan, travel, b.param, box(update, travel, b));
      to_whole(update, plan, travel, true);
    }
    // Scratch as the owner of any of the unit's matrices takes it, so that what one rank books holds for all.
    const auto book = [&](int64_t bytes) {
      if ((plan.shard || divided) && bytes > 0) Owned(arena_, Bucket::scratch, {bytes}, DType::u8);
    };
    if (plan.together > 0) {
      const Owned x(arena_, Bucket::scratch, {plan.together}, DType::f32);
      book(plan.together_scratch);
      for (const std::vector<size_t>& batch : plan.batches) in_one_launch(update, plan, travel, batch, *x);
    }
    if (plan.rest.matrix > 0) {
      NewtonSchulz ns(plan.rest, o_.dtype, device_, arena_, host_);
      book(plan.rest_scratch);
      for (size_t matrix : plan.one_by_one) {
        const Shape& s = update.set.params[matrix].decl.global;
        take(update, plan, travel, matrix, ns.input(s[0], s[1]));
        give(update, plan, travel, matrix, ns.run(s[0], s[1], update.stream));
      }
    }
    if (divided) {
      to_whole(update, plan, travel, false);
      for (const MatrixBox& b : plan.divided.boxes)
        end(update, plan, travel, b.param, box(update, travel, b));
    }
    if (plan.shard) {
      to_owners(update, plan, travel, false);
      for (const MatrixPiece& piece : plan.matrices.mine)
        update.apply(piece, travel.mine->narrow(0, piece.at, piece.of_matrix.size()));
    }
  }

  // x: f32, at least as many elements as the batch has.
  void in_one_launch(const Update& update, const UnitPlan& plan, Travel& travel,
                     const std::vector<size_t>& batch, const Tensor& x) {
    OrthogonaliseArgs args;
    int64_t elements = 0;
    const auto place_of = [&](size_t matrix) {
      const Shape& s = update.set.params[matrix].decl.global;
      const Tensor place = x.narrow(0, elements, s.numel()).view(s);
      elements += s.numel();
      return place;
    };
    for (size_t matrix : batch) {
      const Shape& s = update.set.params[matrix].decl.global;
      args.sides[size_t(args.count++)] = {s[0], s[1]};
      take(update, plan, travel, matrix, place_of(matrix));
    }
    args.x = x.narrow(0, 0, elements);
    device_.kernels().run(args, update.stream);
    elements = 0;
    for (size_t matrix : batch) give(update, plan, travel, matrix, place_of(matrix));
  }

  // Puts a matrix before its orthogonalisation into m [rows, cols];
  void take(const Update& update, const UnitPlan& plan, Travel& travel, size_t matrix, const Tensor& m) {
    if (const MatrixBox* b = plan.divided.box_of(matrix))
      return copy_boxes(update, plan, travel, *b, m, true);
    begin(update, plan, travel, matrix, m.view({m.numel()}));
  }
  // moves the result on from there.
  void give(const Update& update, const UnitPlan& plan, Travel& travel, size_t matrix, const Tensor& m) {
    if (const MatrixBox* b = plan.divided.box_of(matrix))
      return copy_boxes(update, plan, travel, *b, m, false);
    end(update, plan, travel, matrix, m.view({m.numel()}));
  }

  // A matrix's box as its owner in the shard group has it, flat: what momentum makes of it,
  void begin(const Update& update, const UnitPlan& plan, Travel& travel, size_t matrix, const Tensor& u) {
    if (plan.shard) return copy_pieces(plan.matrices, matrix, *travel.owned, u, true, update.stream);
    for (const MatrixPiece& piece : plan.matrices.mine)
      if (piece.param == matrix) update.momentum(piece, u);
  }
  // and what becomes of it.
  void end(const Update& update, const UnitPlan& plan, Travel& travel, size_t matrix, const Tensor& o) {
    if (plan.shard) return copy_pieces(plan.matrices, matrix, *travel.owned, o, false, update.stream);
    for (const MatrixPiece& piece : plan.matrices.mine)
      if (piece.param == matrix) update.apply(piece, o);
  }

  Tensor box(const Update& update, const Travel& travel, const MatrixBox& b) const {
    return travel.boxes->narrow(0, b.at, update.set.params[b.param].numel());
  }

  // Between the boxes of all ranks of tp, as they came, and the matrix.
  void copy_boxes(const Update& update, const UnitPlan& plan, const Travel& travel, const MatrixBox& b,
                  const Tensor& matrix, bool to_matrix) {
    const Shape& s = update.set.params[b.param].box.extent;
    for (size_t r = 0; r < plan.divided.from_rank.size(); r++) {
      const int64_t at = int64_t(r) * plan.divided.from_rank[r] + b.of_rank;
      const Tensor there = travel.wholes->narrow(0, at, s.numel()).view(s);
      const Tensor here = matrix.narrow(b.dim, int64_t(r) * s[b.dim], s[b.dim]);
      device_.copy(to_matrix ? here : there, to_matrix ? there : here, update.stream);
    }
  }

  // Between the pieces as they travel and the matrix, row-major.
  void copy_pieces(const MatrixPlan& plan, size_t matrix, const Tensor& pieces, const Tensor& whole,
                   bool to_whole, Stream stream) {
    for (const MatrixPiece& p : plan.owned) {
      if (p.param != matrix) continue;
      const Tensor piece = pieces.narrow(0, p.at, p.of_matrix.size());
      const Tensor place = whole.narrow(0, p.of_matrix.begin, p.of_matrix.size());
      device_.copy(to_whole ? place : piece, to_whole ? piece : place, stream);
    }
  }

  // Pieces to the owners of their matrices, or home.
  void to_owners(const Update& update, const UnitPlan& plan, const Travel& travel, bool there) {
    const MatrixPlan& m = plan.matrices;
    const Tensor mine = travel.mine->narrow(0, 0, m.sent()), owned = travel.owned->narrow(0, 0, m.received());
    device_.wait(wire_, device_.record(update.stream));
    exchange(*plan.shard, mine, owned, m.to_owner, m.from_rank, there, wire_);
    const double begin = now_s();
    device_.wait(update.stream, device_.record(wire_));
    waited_s_ += now_s() - begin;
  }
  // Boxes to the ranks of tp that put their matrices together, or home; on the compute stream, which has
  // nothing else to do.
  void to_whole(const Update& update, const UnitPlan& plan, const Travel& travel, bool there) {
    const DividedPlan& d = plan.divided;
    auto used = [](const Tensor& buffer, const std::vector<int64_t>& counts) {
      return buffer.narrow(0, 0, std::accumulate(counts.begin(), counts.end(), int64_t(0)));
    };
    const double begin = now_s();
    exchange(*ranks_.tp, used(*travel.boxes, d.to_owner), used(*travel.wholes, d.from_rank), d.to_owner,
             d.from_rank, there, update.stream);
    waited_s_ += now_s() - begin;
  }
  static void exchange(Communicator& ranks, const Tensor& mine, const Tensor& owned,
                       const std::vector<int64_t>& to_owner, const std::vector<int64_t>& from_rank,
                       bool there, Stream stream) {
    if (there)
      ranks.all_to_all({.send = mine, .recv = owned, .send_rows = to_owner, .recv_rows = from_rank}, stream);
    else
      ranks.all_to_all({.send = owned, .recv = mine, .send_rows = from_rank, .recv_rows = to_owner}, stream);
  }

  MuonOptions o_;
  AdamW adamw_;
  MuonRanks ranks_;
  Device& device_;
  Arena& arena_;
  Stream wire_;
  std::vector<UnitPlan> plans_;  // by unit
  std::vector<double> host_;     // block sums of squares
  double waited_s_ = 0;
};

}  // namespace

LrAdjust lr_adjust_from_name(std::string_view name) {
  if (name == "original") return LrAdjust::original;
  if (name == "match_rms_adamw") return LrAdjust::match_rms_adamw;
  bad_request("optimizer.adjust_lr: unknown '{}'; known are original, match_rms_adamw", name);
}

double adjusted(LrAdjust how, int64_t rows, int64_t cols) {
  return how == LrAdjust::original ? std::sqrt(std::max(1.0, double(rows) / double(cols)))
                                   : 0.2 * std::sqrt(double(std::max(rows, cols)));
}

std::unique_ptr<Optimizer> make_muon(const MuonOptions& o, const ParamSet& set, const MuonRanks& ranks,
                                     Device& device, Arena& arena) {
  return std::make_unique<Muon>(o, set, ranks, device, arena);
}

}  // namespace trireme
