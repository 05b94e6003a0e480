// Muon (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982; numbers and order of torch.optim.Muon):
//
//   m = m + (1 - mu) (g - m);  u = g + mu (m - g)       Nesterov; without: u = m
//   o = Newton-Schulz(u)                                newton_schulz.h
//   w = w (1 - lr wd) - lr s o                          s = adjust(rows, cols)
//
// for hidden matrices: the two-dim weights inside blocks (ParamDecl::hidden_matrix), each by itself, also
// where q, k, v are stored side by side. Everything else is AdamW's, at its own learning rate. So a hidden
// matrix has one moment, exp_avg, and no exp_avg_sq.
//
// Sharded (ZeRO 1 to 3), momentum and update stay on the rank that has the elements; only u travels, in the
// type of the products, to the one rank that orthogonalises the matrix, and o back (matrix_owners.h): bit for
// bit the update of one rank. So do a matrix's parts under tp. Experts are whole on their ranks, and their
// units are divided over edp.
#pragma once
#include <string_view>

#include "comm/communicator.h"
#include "optim/optimizer.h"
#include "tensor/arena.h"

namespace trireme {

// original: sqrt(max(1, rows / cols)); match_rms_adamw: 0.2 sqrt(max(rows, cols)), the size of AdamW's
// updates, so that its learning rate and weight decay serve both.
enum class LrAdjust : uint8_t { original, match_rms_adamw };
LrAdjust lr_adjust_from_name(std::string_view);  // bad_request on an unknown name
double adjusted(LrAdjust, int64_t rows, int64_t cols);

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  LrAdjust adjust = LrAdjust::match_rms_adamw;
  double weight_decay = 0.1;
  DType dtype = DType::f32;  // of the products: f32 or bf16
  AdamWOptions adamw;        // of all else
  double adamw_lr = 1;       // times the learning rate
};

// Who else has parts of a matrix: the ranks that divide units, and those that divide units of experts
// (Unit::experts); null where one rank has them whole. tp: those that divide matrices, null for one.
struct MuonRanks {
  ShardPlace place = {}, expert_place = {};
  Communicator *shard = nullptr, *expert_shard = nullptr, *tp = nullptr;
};

// set: laid out, its order stays. Everything given outlives this.
std::unique_ptr<Optimizer> make_muon(const MuonOptions&, const ParamSet&, const MuonRanks&, Device&, Arena&);

}  // namespace trireme
