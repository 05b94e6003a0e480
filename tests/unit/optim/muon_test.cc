#include "optim/muon.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "../comm/ranks.h"
#include "base/file.h"
#include "base/json.h"
#include "flat_set.h"
#include "optim/matrix_owners.h"
#include "source_dir.h"

namespace trireme {
namespace {

using test::DeviceArena;
using test::FlatBuffers;
using test::global_index;
using test::param;
using test::set_element;

// As tools/make_muon_golden.py: in [-1, 1).
double golden_value(int64_t matrix, int64_t step, int64_t i) {
  auto h = uint32_t(uint64_t(matrix) * 1000003 + uint64_t(step) * 10007 + uint64_t(i) * 97 + 12345);
  h ^= h >> 16, h *= 0x85EBCA6Bu, h ^= h >> 13, h *= 0xC2B2AE35u, h ^= h >> 16;
  return double(h) / 2147483648.0 - 1;
}

struct OneRank {
  OneRank(const ParamSet& set, const MuonOptions& o, DType weights, DType grads)
      : muon(make_muon(o, set, {}, *device, memory.arena)) {
    buffers.emplace(set, ShardPlace{}, weights, grads, muon->state());
  }
  std::unique_ptr<Device> device = make_device("cpu", {.threads = 1});
  DeviceArena memory{*device, 4 << 20};
  std::unique_ptr<Optimizer> muon;
  std::optional<FlatBuffers> buffers;
};

// Ten steps of torch.optim.Muon. With products in f32 the two differ by rounding alone; torch's own bf16
// products are as far from that as ours (matmul and the norm round elsewhere), measured against how far the
// weights have gone.
TEST(Muon, TenStepsOfTorch) {
  auto golden = nlohmann::json::parse(read_text(test::source_dir() / "tests/unit/optim/golden/muon.json"));
  std::vector<ParamDecl> decls;
  for (const auto& s : golden["shapes"])
    decls.push_back(param("m" + std::to_string(decls.size()), {s[0], s[1]}, true));
  const ParamSet set = lay_out(decls, Mesh(), 0);
  for (const auto& c : golden["cases"]) {
    const bool f32 = c["products"] == "f32";
    OneRank rank(set,
                 {.momentum = golden["momentum"],
                  .nesterov = c["nesterov"],
                  .adjust = lr_adjust_from_name(c["adjust"].get<std::string>()),
                  .weight_decay = golden["weight_decay"],
                  .dtype = f32 ? DType::f32 : DType::bf16,
                  .adamw = {}},
                 DType::f32, DType::f32);
    const FlatState& flat = rank.buffers->flat;
    auto fill = [&](const Tensor& t, int64_t step) {
      for (size_t m = 0; m < set.params.size(); m++)
        for (int64_t i = 0; i < set.params[m].numel(); i++)
          set_element(t, set.params[m].offset + i, float(golden_value(int64_t(m), step, i)));
    };
    fill(flat.master, 0);
    for (int64_t step = 1; step <= golden["steps"]; step++) {
      fill(flat.grads, step);
      rank.muon->step(rank.device->kernels(), set, set.units[0], flat, {.lr = golden["lr"], .step = step},
                      {});
    }
    for (size_t m = 0; m < set.params.size(); m++) {
      double off = 0, moved = 0;
      for (int64_t i = 0; i < set.params[m].numel(); i++) {
        const double got = double(flat.master.as<float>()[set.params[m].offset + i]);
        const double want = c["weights"][m][size_t(i)];
        off += (got - want) * (got - want);
        moved += std::pow(want - golden_value(int64_t(m), 0, i), 2);
      }
      EXPECT_LT(std::sqrt(off / moved), f32 ? 2e-5 : 2.5e-2)
          << c["products"] << " " << c["adjust"] << " nesterov " << c["nesterov"] << " matrix " << m;
    }
  }
}

// Divided over tp, rows or columns.
ParamDecl part(std::string name, Shape shape, int dim, bool hidden = true) {
  ParamDecl d = param(std::move(name), shape, hidden);
  d.shard = sharded(dim, Axis::tp);
  return d;
}

// Units as a small model has them: an embedding, blocks whose matrices lie between norms and biases, a head.
// Under tp each matrix is divided, but for v, the smallest and the square. In f32 wide, tall and square go
// into one launch on one rank, and one by one where ranks share them.
std::vector<std::vector<ParamDecl>> model() {
  std::vector<std::vector<ParamDecl>> units = {{param("embed", {61, 36}, false)}};
  for (const std::string b : {"0.", "1."})
    units.push_back({param(b + "norm", {36}, false), part(b + "q", {36, 36}, 0), part(b + "k", {12, 36}, 0),
                     param(b + "v", {12, 36}, true), part(b + "bias", {60}, 0, false),
                     part(b + "o", {36, 36}, 1), part(b + "gate", {156, 36}, 0), part(b + "up", {156, 36}, 0),
                     part(b + "down", {36, 156}, 1), param(b + "one", {1, 1}, true),
                     part(b + "wide", {60, 156}, 0), part(b + "tall", {108, 48}, 1),
                     param(b + "square", {50, 50}, true)});
  units.push_back({param("norm", {36}, false), param("head", {61, 36}, false)});
  return units;
}

constexpr int64_t kSteps = 10;

// Element i of parameter p: step 0 is the weight, then the gradients.
float drawn(size_t p, int64_t i, int64_t step) {
  static const std::vector<float> all = [] {
    std::vector<float> v;
    for (uint64_t k = 0; k < 65536; k++) v.push_back(float(normal(3, k)));
    return v;
  }();
  const auto at = size_t(step * 7919 + int64_t(p) * 4001 + i);
  return all[at % all.size()] * (step == 0 ? 1.0f : 1e-3f);
}

// What a rank holds of each parameter after some steps: master, states; the weights everybody has.
struct Result {
  std::vector<std::vector<float>> master, exp_avg, exp_avg_sq;
  int64_t wire = 0;
  std::set<int64_t> peaks;  // of ranks
};

void collect(const ParamSet& set, const FlatState& flat, Result& out) {
  for (size_t p = 0; p < set.params.size(); p++) {
    const Unit& u =
        *std::find_if(set.units.begin(), set.units.end(), [&](const Unit& v) { return p < v.last; });
    const Range own = own_part(u, flat.place), mine = inside(set.params[p], u, own);
    if (mine.size() == 0) continue;
    const int64_t at = set.params[p].offset - u.offset + mine.begin - own.begin;
    for (int64_t i = 0; i < mine.size(); i++) {
      const auto to = size_t(global_index(set.params[p], mine.begin + i));
      out.master[p][to] = flat.own(flat.master, set, u).as<float>()[at + i];
      out.exp_avg[p][to] = flat.own(flat.state[0], set, u).as<float>()[at + i];
      if (!set.params[p].decl.hidden_matrix)
        out.exp_avg_sq[p][to] = flat.state[1].as<float>()[others_range(set, u, flat.place, p).begin + i];
    }
  }
}

// dp replicas, which divide the state where it is sharded, and tp ranks.
struct Ranks {
  int dp = 1, tp = 1;
  bool sharded = true;
};

Result train(const Ranks& ranks, DType weights, DType grads, int64_t steps) {
  Result out;
  for (const auto& unit : model())
    for (const ParamDecl& d : unit) {
      std::vector<float> none(size_t(d.global.numel()), -77.0f);
      out.master.push_back(none), out.exp_avg.push_back(none), out.exp_avg_sq.push_back(none);
    }
  std::mutex mutex;
  testing::with_ranks(ranks.dp * ranks.tp, [&](testing::Rank& me) {
    const std::vector<std::vector<ParamDecl>> units = model();
    const Mesh mesh({.dp = ranks.dp, .tp = ranks.tp});
    CommSet comms(me.factory, mesh);
    static constexpr Axis kDp[] = {Axis::dp}, kTp[] = {Axis::tp};
    const int shards = ranks.sharded ? ranks.dp : 1;
    const ParamSet set = lay_out(units, mesh, me.rank, shards, shards);
    const ShardPlace place = shards > 1 ? ShardPlace{.shards = shards, .shard = mesh.coord(me.rank, Axis::dp)}
                                        : ShardPlace{.replicas = ranks.dp};
    DeviceArena memory(me.device, 4 << 20);
    Arena& arena = memory.arena;
    MuonOptions o{.dtype = weights == DType::bf16 ? DType::bf16 : DType::f32, .adamw = {}, .adamw_lr = 0.5};
    auto muon = make_muon(o, set,
                          {.place = place,
                           .shard = shards > 1 ? &comms.along(kDp) : nullptr,
                           .tp = ranks.tp > 1 ? &comms.along(kTp) : nullptr},
                          me.device, arena);
    FlatBuffers buffers(set, place, weights, grads, muon->state());
    const FlatState& flat = buffers.flat;
    for (const Unit& u : set.units)
      for (size_t p = u.first; p < u.last; p++) {
        const Range own = own_part(u, place), mine = inside(set.params[p], u, own);
        for (int64_t i = mine.begin; i < mine.end; i++)
          flat.own(flat.master, set, u).as<float>()[set.params[p].offset - u.offset + i - own.begin] =
              drawn(p, global_index(set.params[p], i), 0);
      }
    for (int64_t s = 1; s <= steps; s++)
      for (const Unit& u : set.units) {
        for (size_t p = u.first; p < u.last; p++)
          for (int64_t i = 0; i < set.params[p].numel(); i++)
            set_element(flat.grads, set.params[p].offset + i, drawn(p, global_index(set.params[p], i), s));
        muon->step(me.device.kernels(), set, u, flat, {.lr = 0.02, .step = s, .grad_scale = 0.7f}, {});
      }
    EXPECT_EQ(arena.live_blocks(), 0);
    std::lock_guard lock(mutex);
    collect(set, flat, out);
    out.wire += comms.counts()[size_t(Collective::all_to_all)].wire;
    out.peaks.insert(arena.ledger().peak_total());
  });
  return out;
}

// Ten steps on 2, 3, 4 and 6 ranks are those of one, to the bit, and take the same memory on each.
TEST(Muon, ShardedEqualsSerial) {
  for (auto [weights, grads] :
       {std::pair(DType::f32, DType::f32), {DType::bf16, DType::bf16}, {DType::f16, DType::f32}}) {
    const Result one = train({}, weights, grads, kSteps);
    EXPECT_EQ(one.wire, 0);
    EXPECT_EQ(one.exp_avg_sq[2][0], -77.0f);  // hidden matrices have none
    EXPECT_NE(one.exp_avg_sq[1][0], -77.0f);
    for (const Ranks& ranks : {Ranks{.dp = 2},
                               {.dp = 3},
                               {.dp = 4},
                               {.tp = 2},
                               {.tp = 3},
                               {.tp = 4},
                               {.dp = 2, .tp = 2},
                               {.dp = 3, .tp = 2},
                               {.dp = 2, .tp = 2, .sharded = false}}) {
      SCOPED_TRACE(fmt::format("{}: dp {} tp {} {}", name_of(weights), ranks.dp, ranks.tp, ranks.sharded));
      const Result got = train(ranks, weights, grads, kSteps);
      EXPECT_TRUE(got.master == one.master);
      EXPECT_TRUE(got.exp_avg == one.exp_avg);
      EXPECT_TRUE(got.exp_avg_sq == one.exp_avg_sq);
      EXPECT_EQ(got.peaks.size(), 1u);
    }
  }
}

// Every element of a hidden matrix that is not its owner's goes there and comes back, once a step.
TEST(Muon, WireBytesInClosedForm) {
  for (int ranks : {2, 3, 4})
    for (DType type : {DType::f32, DType::bf16}) {
      const std::vector<std::vector<ParamDecl>> units = model();
      const ParamSet set = lay_out(units, Mesh(), 0, ranks);
      int64_t away = 0;
      for (const Unit& u : set.units)
        for (const OwnedMatrix& m : matrix_owners(set, u, ranks)) {
          const Param& p = set.params[m.param];
          const Range at_owner = own_part(u, {.shards = ranks, .shard = m.owner});
          const int64_t begin = p.offset - u.offset;
          const int64_t there = std::max<int64_t>(
              0, std::min(at_owner.end, begin + p.numel()) - std::max(at_owner.begin, begin));
          away += p.numel() - there;
        }
      EXPECT_GT(away, 0);
      EXPECT_EQ(train({.dp = ranks}, type, DType::f32, 3).wire, 3 * 2 * away * size_of(type)) << ranks;
    }
  // Over tp, of each matrix that it divides, all but the owner's box.
  for (int tp : {2, 3, 4}) {
    int64_t boxes = 0;
    for (const auto& unit : model())
      for (const ParamDecl& d : unit)
        if (d.hidden_matrix && d.shard.divides_along(Axis::tp)) boxes += d.global.numel() / tp;
    for (bool bf16 : {false, true})
      EXPECT_EQ(train({.tp = tp}, bf16 ? DType::bf16 : DType::f32, DType::f32, 3).wire,
                3 * 2 * boxes * (tp - 1) * (bf16 ? 2 : 4));
  }
}

// Seven matrices on three ranks: none has much more than the average, all have the same buffers.
TEST(MatrixOwners, SpreadTheWork) {
  std::vector<ParamDecl> block = {param("q", {512, 512}, true),     param("k", {128, 512}, true),
                                  param("v", {128, 512}, true),     param("o", {512, 512}, true),
                                  param("gate", {1400, 512}, true), param("up", {1400, 512}, true),
                                  param("down", {512, 1400}, true), param("norm", {512}, false)};
  const std::vector<std::vector<ParamDecl>> units = {block};
  for (int ranks : {1, 2, 3}) {
    const ParamSet set = lay_out(units, Mesh(), 0, ranks);
    std::vector<double> load(static_cast<size_t>(ranks));
    for (const OwnedMatrix& m : matrix_owners(set, set.units[0], ranks)) {
      const Shape& s = set.params[m.param].decl.global;
      EXPECT_TRUE(set.params[m.param].decl.hidden_matrix);
      load[size_t(m.owner)] += newton_schulz_flops(s[0], s[1]);
    }
    double total = 0;
    for (double l : load) total += l;
    for (double l : load) EXPECT_LT(l, 1.25 * total / ranks) << ranks;
    const MatrixPlan first = plan_matrices(set, set.units[0], {.shards = ranks, .shard = 0});
    for (int r = 0; r < ranks; r++) {
      const MatrixPlan p = plan_matrices(set, set.units[0], {.shards = ranks, .shard = r});
      EXPECT_EQ(p.most_sent, first.most_sent);
      EXPECT_EQ(p.most_received, first.most_received);
      EXPECT_LE(p.sent(), p.most_sent);
      EXPECT_LE(p.received(), p.most_received);
    }
  }
}

}  // namespace
}  // namespace trireme
