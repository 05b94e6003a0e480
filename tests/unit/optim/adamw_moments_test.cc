// AdamW with bf16 moments: the bits of an element on every division of its tensor.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "base/rng.h"
#include "flat_set.h"
#include "mesh/mesh.h"

namespace trireme::of_moments {
namespace {

using test::FlatBuffers;
using test::global_index;
using test::param;
using test::set_element;

ParamDecl divided(std::string name, Shape shape, int dim) {
  ParamDecl d = param(std::move(name), shape, true);
  d.shard = sharded(dim, Axis::tp);
  return d;
}

// An embedding that is whole, a block whose matrices tp divides by rows or columns, and a bias.
std::vector<std::vector<ParamDecl>> model() {
  return {{param("embed", {131, 36}, false)},
          {param("norm", {36}, false), divided("q", {36, 36}, 0), divided("o", {36, 36}, 1),
           divided("up", {156, 36}, 0), divided("down", {36, 156}, 1), divided("bias", {60}, 0)}};
}

// Step 0 gives weights, later ones gradients.
uint64_t key_of(const Param& p, int64_t step) {
  return rng_key(3, uint64_t(step), p.decl.name);
}
float drawn(uint64_t key, int64_t i) {
  return float(uniform(key, uint64_t(i)) - 0.4);
}

// Whole parameters by name: master copy, first and second moment.
using States = std::map<std::string, std::array<std::vector<float>, 3>>;

struct Division {
  int dp = 1;
  int tp = 1;
  bool sharded = true;  // over dp
};

// Three steps of one rank, whose elements go into `out`.
void train_rank(const Division& d, int rank, DType weights, uint64_t seed, States& out) {
  const Mesh mesh({.dp = d.dp, .tp = d.tp});
  const int shards = d.sharded ? d.dp : 1;
  const ParamSet set = lay_out(model(), mesh, rank, shards, shards);
  const ShardPlace place = shards > 1 ? ShardPlace{.shards = shards, .shard = mesh.coord(rank, Axis::dp)}
                                      : ShardPlace{.replicas = d.dp};
  auto device = make_device("cpu", {.threads = 1});
  auto adamw = make_adamw({.moments = DType::bf16, .seed = seed});
  FlatBuffers buffers(set, place, weights, DType::f32, adamw->state());
  const FlatState& flat = buffers.flat;
  // Calls each(p, i, at): element i of parameter p is element `at` of the rank's own part of its unit.
  const auto own = [&](const Unit& u, const auto& each) {
    const Range part = own_part(u, place);
    for (size_t p = u.first; p < u.last; p++) {
      const Range mine = inside(set.params[p], u, part);
      for (int64_t i = mine.begin; i < mine.end; i++)
        each(set.params[p], i, set.params[p].offset - u.offset + i - part.begin);
    }
  };
  for (const Unit& u : set.units)
    own(u, [&](const Param& p, int64_t i, int64_t at) {
      flat.own(flat.master, set, u).as<float>()[at] = drawn(key_of(p, 0), global_index(p, i));
    });
  for (int64_t step = 1; step <= 3; step++)
    for (const Unit& u : set.units) {
      for (size_t n = u.first; n < u.last; n++) {
        const Param& p = set.params[n];
        const uint64_t key = key_of(p, step);
        for (int64_t i = 0; i < p.numel(); i++)
          set_element(flat.grads, p.offset + i, drawn(key, global_index(p, i)));
      }
      adamw->step(device->kernels(), set, u, flat, {.lr = 0.02, .step = step, .grad_scale = 0.7f}, {});
    }
  for (const Unit& u : set.units)
    own(u, [&](const Param& p, int64_t i, int64_t at) {
      std::array<std::vector<float>, 3>& all = out[p.decl.name];
      const auto to = size_t(global_index(p, i));
      for (std::vector<float>& values : all) values.resize(size_t(p.decl.global.numel()));
      all[0][to] = flat.own(flat.master, set, u).as<float>()[at];
      all[1][to] = float(flat.own(flat.state[0], set, u).as<bf16>()[at]);
      all[2][to] = float(flat.own(flat.state[1], set, u).as<bf16>()[at]);
    });
}

States train(const Division& d, DType weights, uint64_t seed = 9) {
  States out;
  for (int rank = 0; rank < d.dp * d.tp; rank++) train_rank(d, rank, weights, seed, out);
  return out;
}

TEST(Bf16Moments, HaveTheSameBitsOnEveryDivision) {
  for (const DType weights : {DType::f32, DType::bf16}) {
    const States one = train({}, weights);
    for (const Division& d : {Division{.dp = 2},
                              {.dp = 3},
                              {.tp = 2},
                              {.tp = 3},
                              {.dp = 2, .tp = 2},
                              {.dp = 2, .tp = 2, .sharded = false}})
      EXPECT_TRUE(train(d, weights) == one) << name_of(weights) << ": dp " << d.dp << " tp " << d.tp;
    const States other = train({}, weights, 10);
    EXPECT_FALSE(other == one);
    for (const auto& [name, values] : one)  // each parameter is rounded
      EXPECT_FALSE(other.at(name)[1] == values[1]) << name;
  }
}

// Two parameters with equal gradients, in two steps: four different roundings.
TEST(Bf16Moments, AreRoundedAnewForEachParameterAndStep) {
  const ParamSet set = lay_out({{param("a", {33, 36}, false), param("b", {33, 36}, false)}}, Mesh(), 0);
  auto device = make_device("cpu", {.threads = 1});
  auto adamw = make_adamw({.moments = DType::bf16});
  const int64_t n = set.params[0].numel();
  std::set<std::vector<float>> seen;
  for (const int64_t step : {1, 2}) {
    FlatBuffers buffers(set, {}, DType::f32, DType::f32, adamw->state());
    const FlatState& flat = buffers.flat;
    for (int64_t i = 0; i < 2 * n; i++) set_element(flat.grads, i, drawn(1, i % n));
    adamw->step(device->kernels(), set, set.units[0], flat, {.lr = 0.02, .step = step, .grad_scale = 1}, {});
    const bf16* m = flat.state[0].as<bf16>();
    seen.insert({m, m + n});
    seen.insert({m + n, m + 2 * n});
  }
  EXPECT_EQ(seen.size(), 4u);
}

}  // namespace
}  // namespace trireme::of_moments
