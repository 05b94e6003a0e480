#include "optim/muon.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "optim/adamw.h"
#include "optim/matrix_owners.h"

namespace trireme {
namespace {

class Muon final : public Optimizer {
 public:
  Muon(const MuonOptions& o, const ParamSet& set, const ShardPlace& place, Communicator* shard,
       Device& device, Arena& arena)
      : o_(o), adamw_(o.adamw, true), shard_(shard), device_(device), arena_(arena) {
    require((shard != nullptr) == (place.shards > 1), "Muon's shards and their communicator disagree");
    if (shard_) wire_ = device.stream("dp");
    int64_t blocks = 0;
    for (const Unit& u : set.units) {
      plans_.push_back(plan_matrices(set, u, place));
      blocks = std::max(blocks, plans_.back().largest.blocks());
      scratch_.push_back(0);
      for (size_t i = u.first; i < u.last; i++) {
        const Param& p = set.params[i];
        if (p.decl.hidden_matrix)
          scratch_.back() =
              std::max(scratch_.back(),
                       NewtonSchulz::scratch(device.kernels(), o.dtype, p.box.extent[0], p.box.extent[1]));
      }
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
    const MatrixPlan& plan = plan_of(set, unit);
    if (plan.largest.matrix == 0) return;
    const Update update{*this, set, unit, flat, in, stream};
    if (shard_)
      sharded(update, plan);
    else
      whole(update, plan);
  }

  double waited_s() const override { return waited_s_; }

 private:
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
      const double scale = adjusted(muon.o_.adjust, p.box.extent[0], p.box.extent[1]);
      const double decay = p.decl.decay ? muon.o_.weight_decay : 0;
      muon.device_.kernels().run(MuonApplyArgs{.master = part(flat.master, piece),
                                               .update = o,
                                               .weight = copy ? part(flat.weights, piece) : Tensor(),
                                               .lr = float(in.lr * scale),
                                               .keep = float(1 - in.lr * decay)},
                                 stream);
    }
  };

  // The two buffers that travel: pieces of this rank, pieces of its matrices.
  struct Travel {
    Travel(const Muon& m, const MatrixPlan& plan)
        : mine(m.arena_, Bucket::comm, {plan.most_sent}, m.o_.dtype),
          owned(m.arena_, Bucket::comm, {plan.most_received}, m.o_.dtype) {}
    Owned mine, owned;
  };

  const MatrixPlan& plan_of(const ParamSet& set, const Unit& unit) const {
    const auto i = size_t(&unit - set.units.data());
    require(i < plans_.size(), "a unit of another set");
    return plans_[i];
  }

  void whole(const Update& update, const MatrixPlan& plan) {
    NewtonSchulz ns(plan.largest, o_.dtype, device_, arena_, host_);
    for (const MatrixPiece& piece : plan.mine) {
      const Shape& s = update.set.params[piece.param].box.extent;
      update.momentum(piece, ns.input(s[0], s[1]).view({s.numel()}));
      update.apply(piece, ns.run(s[0], s[1], update.stream).view({s.numel()}));
    }
  }

  void sharded(const Update& update, const MatrixPlan& plan) {
    Travel travel(*this, plan);
    for (const MatrixPiece& piece : plan.mine)
      update.momentum(piece, travel.mine->narrow(0, piece.at, piece.of_matrix.size()));
    const Tensor mine = travel.mine->narrow(0, 0, plan.sent());
    const Tensor owned = travel.owned->narrow(0, 0, plan.received());
    exchange({.send = mine, .recv = owned, .send_rows = plan.to_owner, .recv_rows = plan.from_rank},
             update.stream);
    {
      NewtonSchulz ns(plan.largest, o_.dtype, device_, arena_, host_);
      book_scratch(plan);
      for (size_t matrix : plan.matrices) {
        const Shape& s = update.set.params[matrix].box.extent;
        const Tensor x = ns.input(s[0], s[1]).view({s.numel()});
        copy_pieces(plan, matrix, owned, x, true, update.stream);
        const Tensor o = ns.run(s[0], s[1], update.stream).view({s.numel()});
        copy_pieces(plan, matrix, owned, o, false, update.stream);
      }
    }
    exchange({.send = owned, .recv = mine, .send_rows = plan.from_rank, .recv_rows = plan.to_owner},
             update.stream);
    for (const MatrixPiece& piece : plan.mine)
      update.apply(piece, travel.mine->narrow(0, piece.at, piece.of_matrix.size()));
  }

  // As much as the owner of any of the unit's matrices takes, so that what one rank books holds for all.
  void book_scratch(const MatrixPlan& plan) {
    if (const int64_t bytes = scratch_[size_t(&plan - plans_.data())])
      Owned(arena_, Bucket::scratch, {bytes}, DType::u8);
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

  void exchange(const AllToAllArgs& args, Stream compute) {
    device_.wait(wire_, device_.record(compute));
    shard_->all_to_all(args, wire_);
    const auto begin = std::chrono::steady_clock::now();
    device_.wait(compute, device_.record(wire_));
    waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  MuonOptions o_;
  AdamW adamw_;
  Communicator* shard_;
  Device& device_;
  Arena& arena_;
  Stream wire_;
  std::vector<MatrixPlan> plans_;  // by unit
  std::vector<int64_t> scratch_;   // by unit: the most that an op on any of its matrices takes
  std::vector<double> host_;       // block sums of squares
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

std::unique_ptr<Optimizer> make_muon(const MuonOptions& o, const ParamSet& set, const ShardPlace& place,
                                     Communicator* shard, Device& device, Arena& arena) {
  return std::make_unique<Muon>(o, set, place, shard, device, arena);
}

}  // namespace trireme
