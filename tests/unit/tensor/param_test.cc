// Where parameters of a divided layer lie.
#include "tensor/param.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

ParamDecl decl(std::string name, Shape global, ShardSpec shard = {}) {
  ParamDecl d;
  d.name = std::move(name), d.global = global, d.shard = shard;
  return d;
}

// A table that the ranks do not divide evenly comes last in its unit, which is as long on each; what lies
// behind its rows is the unit's padding. What all ranks hold, the first answers for.
TEST(LayOut, ARaggedTableIsCompletedByItsUnitsPadding) {
  ShardSpec vocabulary = sharded(0, Axis::tp);
  vocabulary.ragged = true;
  const std::vector<ParamDecl> decls = {decl("table", {7, 2}, vocabulary), decl("positions", {3, 2}),
                                        decl("half", {4, 6}, sharded(1, Axis::tp))};
  const Mesh mesh({.dp = 2, .tp = 3});
  for (int rank = 0; rank < 6; rank++) {
    const int tp = rank % 3;
    const ParamSet set = lay_out(decls, mesh, rank);
    ASSERT_EQ(set.params.size(), 3u);
    EXPECT_TRUE(set.divided);
    const Param &positions = set.params[0], &half = set.params[1], &table = set.params[2];
    EXPECT_EQ(positions.decl.name, "positions");
    EXPECT_EQ(positions.answers, tp == 0);
    EXPECT_EQ(half.offset, 6);
    EXPECT_EQ(half.box, (Slice{{0, 2 * tp}, {4, 2}}));
    EXPECT_TRUE(half.answers);
    EXPECT_EQ(table.offset, 14);
    EXPECT_EQ(table.box, (Slice{{3 * tp, 0}, {tp == 2 ? 1 : 3, 2}}));
    EXPECT_EQ(table.stored, (Shape{3, 2}));
    EXPECT_EQ(set.units[0].numel, tp == 2 ? 16 : 20);
    EXPECT_EQ(set.units[0].padded, 20);
  }
  // Alone they lie as declared.
  const ParamSet one = lay_out(decls, Mesh(), 0);
  EXPECT_EQ(one.params[0].decl.name, "table");
  EXPECT_EQ(one.params[1].offset, 14);
  EXPECT_FALSE(one.divided);
}

TEST(LayOut, AParameterIsDeclaredOnce) {
  EXPECT_THROW(lay_out({decl("a", {4}), decl("b", {4}), decl("a", {4})}, Mesh(), 0), Error);
}

}  // namespace
}  // namespace trireme
