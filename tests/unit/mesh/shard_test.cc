#include "mesh/shard.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {
namespace {

std::string error_of(const Shape& s, const ShardSpec& spec, const Mesh& m) {
  try {
    local_slice(s, spec, m, 0);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "no error";
}

TEST(LocalSlice, WholeWhereNothingIsSharded) {
  const Mesh m({.dp = 2, .tp = 3});
  for (int r = 0; r < 6; r++) {
    EXPECT_EQ(local_slice({5, 7}, {}, m, r), (Slice{{0, 0}, {5, 7}}));
    EXPECT_EQ(local_slice({}, {}, m, r), (Slice{{}, {}}));
  }
}

TEST(LocalSlice, ByHand) {
  const Mesh m({.pp = 2, .tp = 3});  // rank = pp * 3 + tp
  EXPECT_EQ(local_slice({6, 4}, {{{{Axis::tp}, {Axis::pp}}}}, m, 5), (Slice{{4, 2}, {2, 2}}));
  // Outer axis first: tp outer, pp inner, so rank 1 (pp 0, tp 1) has index 1 * 2 + 0 of six.
  EXPECT_EQ(local_slice({12}, {{{{Axis::tp, Axis::pp}}}}, m, 1), (Slice{{4}, {2}}));
  EXPECT_EQ(local_slice({12}, {{{{Axis::pp, Axis::tp}}}}, m, 1), (Slice{{2}, {2}}));
  EXPECT_EQ(local_slice({0, 3}, {{{{Axis::tp}}}}, m, 2), (Slice{{0, 0}, {0, 3}}));
}

// Every element belongs to exactly world / (ranks that share the sharding) ranks.
TEST(LocalSlice, BoxesTileTheTensor) {
  const Mesh m({.pp = 2, .dp = 2, .tp = 3, .ep = 2});
  const ShardSpec specs[] = {
      {{{{Axis::tp}, {}, {Axis::pp}}}}, {{{{Axis::ep}, {Axis::pp}, {}}}}, {{{{}, {Axis::pp, Axis::tp}}}}};
  const int copies[] = {2, 3, 2};
  const Shape global{12, 6, 4};
  for (int s = 0; s < 3; s++) {
    std::vector<int> owners(size_t(global.numel()), 0);
    for (int r = 0; r < m.world(); r++) {
      const Slice b = local_slice(global, specs[s], m, r);
      for (int64_t i = 0; i < b.extent[0]; i++)
        for (int64_t j = 0; j < b.extent[1]; j++)
          for (int64_t k = 0; k < b.extent[2]; k++)
            owners[size_t(((b.offset[0] + i) * 6 + b.offset[1] + j) * 4 + b.offset[2] + k)]++;
    }
    for (int o : owners) ASSERT_EQ(o, copies[s]);
  }
}

// Parts rounded up: the last ones short or empty, and all stored alike.
TEST(LocalSlice, RaggedPartsTileTheTensor) {
  ShardSpec spec = sharded(0, Axis::tp);
  spec.ragged = true;
  EXPECT_TRUE(spec.divides_along(Axis::tp));
  EXPECT_FALSE(spec.divides_along(Axis::pp));
  for (auto [rows, tp, part] : {std::tuple(7, 3, 3), {8, 4, 2}, {5, 4, 2}, {61, 4, 16}, {2, 3, 1}}) {
    const Mesh m({.dp = 2, .tp = tp});
    int64_t at = 0;
    for (int r = 0; r < tp; r++) {
      const Slice box = local_slice({rows, 5}, spec, m, r);
      EXPECT_EQ(box.offset, (Shape{at, 0}));
      EXPECT_EQ(box.extent[1], 5);
      EXPECT_LE(box.extent[0], part);
      EXPECT_EQ(box.extent[0]<part, at + part> rows) << r << " of " << rows;
      at += box.extent[0];
    }
    EXPECT_EQ(at, rows);
    EXPECT_EQ(stored_shape({rows, 5}, spec, m), (Shape{part, 5}));
  }
  EXPECT_EQ(stored_shape({6, 4}, sharded(1, Axis::tp), Mesh({.tp = 2})), (Shape{6, 2}));
}

TEST(LocalSlice, UnevenDimsNameEverything) {
  const Mesh m({.pp = 2, .tp = 3});
  EXPECT_EQ(error_of({4, 10}, {{{{}, {Axis::tp}}}}, m),
            "dim 1 of a tensor of shape [4, 10] has size 10, which tp = 3 does not divide");
  EXPECT_EQ(error_of({9}, {{{{Axis::pp, Axis::tp}}}}, m),
            "dim 0 of a tensor of shape [9] has size 9, which pp*tp = 2*3 = 6 does not divide");
}

TEST(LocalSlice, WrongSpecsAreABug) {
  const Mesh m({.tp = 2});
  EXPECT_THROW(local_slice({4}, {{{{}, {Axis::tp}}}}, m, 0), Error);
  EXPECT_THROW(local_slice({4, 4}, {{{{Axis::tp}, {Axis::tp}}}}, m, 0), Error);
}

Slice box_of(int64_t n) {
  return {{0}, {n}};
}

TEST(FlatRange, ByHand) {
  const Mesh m({.dp = 3});
  const std::array dp = {Axis::dp};
  // 5 blocks on 3 ranks: 2, 2, 1, and the last block is short.
  const int64_t n = 4 * kFlatBlock + 7;
  EXPECT_EQ(flat_range(box_of(n), m, dp, 0), (Range{0, 2 * kFlatBlock}));
  EXPECT_EQ(flat_range(box_of(n), m, dp, 1), (Range{2 * kFlatBlock, 4 * kFlatBlock}));
  EXPECT_EQ(flat_range(box_of(n), m, dp, 2), (Range{4 * kFlatBlock, n}));
  // One element: the first rank has it, the others nothing.
  EXPECT_EQ(flat_range(box_of(1), m, dp, 0), (Range{0, 1}));
  EXPECT_EQ(flat_range(box_of(1), m, dp, 1), (Range{1, 1}));
  EXPECT_EQ(flat_range(box_of(1), m, dp, 2), (Range{1, 1}));
  EXPECT_EQ(flat_range(box_of(0), m, dp, 0), (Range{0, 0}));
  EXPECT_EQ(flat_range({{}, {}}, m, dp, 0), (Range{0, 1}));  // a scalar has one element
}

TEST(FlatRange, NoAxesMeansAllOfIt) {
  const Mesh m({.dp = 3});
  EXPECT_EQ(flat_range(box_of(123456), m, {}, 2), (Range{0, 123456}));
}

TEST(FlatRange, RangesTileTheBoxEvenlyInWholeBlocks) {
  const Mesh m({.pp = 2, .dp = 3, .cp = 2, .tp = 2});
  const std::array axes = {Axis::dp, Axis::cp};
  const uint64_t key = rng_key(3, 0, "flat");
  for (uint64_t t = 0; t < 200; t++) {
    const auto n = int64_t(below(key, t, t % 2 ? 100 : 40 * uint64_t(kFlatBlock)));
    int64_t at = 0, fewest = n + 1, most = 0;
    for (int r : m.group(int(t % 24), axes)) {
      const Range range = flat_range(box_of(n), m, axes, r);
      ASSERT_EQ(range.begin, at);
      ASSERT_GE(range.end, range.begin);
      ASSERT_TRUE(range.begin % kFlatBlock == 0 || range.size() == 0);
      at = range.end;
      const int64_t blocks = (range.size() + kFlatBlock - 1) / kFlatBlock;
      fewest = std::min(fewest, blocks), most = std::max(most, blocks);
    }
    ASSERT_EQ(at, n);
    ASSERT_LE(most - fewest, 1);
  }
}

}  // namespace
}  // namespace trireme
