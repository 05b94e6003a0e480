// Bytes on the wire by group, of recorded steps and of programs, against the papers' closed forms.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "oracle.h"
#include "run_of.h"

namespace oracle {
namespace {

using namespace trireme;

// Bytes that the rank sends in a step, by "group collective"; messages between stages are "pp".
std::map<std::string, double> wires(const RunSpec& run, int pp_rank = 0) {
  const Booking b = book_stage(run, schedule_of(run), 1, {}, pp_rank);
  std::map<std::string, double> all;
  for (const Piece& p : b.tape.pieces) {
    if (p.kind == PieceKind::send) all["pp"] += double(p.wire);
    if (p.kind == PieceKind::call)
      all[fmt::format("{} {}", b.tape.groups[size_t(p.group)].name, p.name)] += double(p.wire);
  }
  return all;
}

// The same of replicas and stages, by the operations of the rank's program.
struct ProgramWire {
  double gathers = 0, reduces = 0, messages = 0;
};
ProgramWire wires_of_program(const RunSpec& run, int pp_rank, double D) {
  const Schedule schedule = schedule_of(run);
  LayerTapes tapes;
  const ComposedRank rank(run, schedule, 1, {}, pp_rank, tapes);
  const RankTapes& t = rank.tapes();
  ProgramWire w;
  for (const Op& op : rank.program().ops) {
    const auto u = size_t(std::max(0, op.unit));
    if (op.kind == OpKind::gather) w.gathers += ring(D, double(t.weights[u].bytes));
    if (op.kind == OpKind::spread)
      for (size_t i = u; i < size_t(op.last); i++) w.gathers += ring(D, double(t.weights[i].bytes));
    if (op.kind == OpKind::reduce)
      w.reduces += ring(D, double(t.shape.units[size_t(op.last) - 1].end - t.shape.units[u].begin));
    if (op.kind == OpKind::send) w.messages += double(t.message.bytes);
  }
  return w;
}

TEST(OracleWire, ReplicasSendZerosTable) {
  for (const int stage : {0, 1, 2, 3})
    for (const double m : {1, 3}) {
      SCOPED_TRACE(fmt::format("zero {}, {} microbatches", stage, m));
      const Sizes z{.D = 4, .m = m};
      const RunSpec run = run_of(z, {.zero = stage});
      const Replicas want = replicas(z.stage(true, true), stage, z.D, m);
      std::map<std::string, double> real = wires(run);
      const ProgramWire program = wires_of_program(run, 0, z.D);
      if (stage == 0) {
        EXPECT_EQ(real["dp all_reduce"], want.gathers + want.reduces);
        EXPECT_EQ(program.reduces, want.reduces);
        continue;
      }
      EXPECT_NEAR(real["dp all_gather"], want.gathers, kPadding * want.gathers);
      EXPECT_NEAR(real["dp reduce_scatter"], want.reduces, kPadding * want.reduces);
      EXPECT_EQ(program.gathers, real["dp all_gather"]);
      EXPECT_EQ(program.reduces, real["dp reduce_scatter"]);
    }
}

// Differences between runs of four and five blocks.
TEST(OracleWire, BlocksSendKorthikantisRows) {
  for (const double t : {2, 4})
    for (const bool full : {false, true}) {
      SCOPED_TRACE(fmt::format("tp {}, {}", t, full ? "full recompute" : "no recompute"));
      Sizes z{.L = 4, .t = t, .m = 2};
      const RunOptions o{.recompute = full ? "full" : "none"};
      std::map<std::string, double> few = wires(run_of(z, o));
      z.L += 1;
      std::map<std::string, double> more = wires(run_of(z, o));
      const double call = z.m * ring(t, 2 * z.s * z.b * z.h);
      EXPECT_EQ(more["tp all_gather"] - few["tp all_gather"], tensor_calls(full).gathers * call);
      EXPECT_EQ(more["tp reduce_scatter"] - few["tp reduce_scatter"], tensor_calls(full).scatters * call);
    }
}

TEST(OracleWire, RingsSendKeysAndValues) {
  for (const double c : {2, 4}) {
    const Sizes z{.c = c, .m = 2};
    EXPECT_EQ(wires(run_of(z, {}))["cp p2p"], z.m * z.L * ring_attention(z)) << "cp " << c;
  }
}

TEST(OracleWire, ExpertsSendTheirRows) {
  for (const double e : {2, 4}) {
    const Sizes z{.e = e, .D = e, .m = 2};
    double rows = 0;
    for (const auto& [call, bytes] : wires(run_of(z, {.experts = 4})))
      if (call.ends_with("all_to_all")) rows += bytes;
    EXPECT_EQ(rows, z.m * z.L * expert_rows(z, 2)) << "ep " << e;
  }
}

// The first stage sends activations, the last one gradients, and others both.
TEST(OracleWire, StagesSendTheirBoundary) {
  for (const double t : {1, 2})
    for (const double c : {1, 2}) {
      const Sizes z{.t = t, .p = 4, .c = c, .m = 6};
      const RunSpec run = run_of(z, {});
      for (int r = 0; r < 4; r++) {
        SCOPED_TRACE(fmt::format("tp {} cp {} rank {}", t, c, r));
        const double want = z.m * message(z) * (r == 0 || r == 3 ? 1 : 2);
        EXPECT_EQ(wires(run, r)["pp"], want);
        EXPECT_EQ(wires_of_program(run, r, 1).messages, want);
      }
    }
}

}  // namespace
}  // namespace oracle
