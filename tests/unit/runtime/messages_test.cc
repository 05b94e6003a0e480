// That what travels does so beside what computes, read off the order in which a step is issued: messages
// between stages, and inputs that come back from a file.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/recording.h"
#include "spec/run_schedule.h"
#include "tiny.h"

namespace trireme {
namespace {

RunSpec stages(std::string_view schedule, int pp, int chunks, int64_t microbatches) {
  RunSpec r = test::tiny_run("llama", "f32", microbatches);
  r.model.layers = 2 * pp * chunks, r.model.finish(r.data.seq_len);
  r.layout.pp = pp, r.layout.chunks = chunks, r.layout.schedule = schedule;
  r.precision.reduce = "f32";
  return r;
}

bool is_pass(std::string_view action) {
  return action == "F" || action == "B" || action == "I" || action == "W";
}

// The launches of pieces [begin, end) that are of passes over layers.
int64_t launches_between(const Tape& t, size_t begin, size_t end) {
  return std::count_if(t.pieces.begin() + std::ptrdiff_t(begin), t.pieces.begin() + std::ptrdiff_t(end),
                       [](const Piece& p) { return p.launched && is_pass(p.action); });
}

// Where compute first waits for a piece of another stream; the tape's end where it does not.
size_t waited_at(const Tape& t, size_t piece) {
  int64_t number = 0;  // of its stream
  for (size_t i = 0; i <= piece; i++) number += t.pieces[i].stream == t.pieces[piece].stream;
  for (size_t i = piece; i < t.pieces.size(); i++) {
    const Piece& p = t.pieces[i];
    if (p.kind == PieceKind::wait && p.stream == 0 && p.on == t.pieces[piece].stream && p.mark >= number)
      return i;
  }
  return t.pieces.size();
}

struct Counted {
  int sends = 0, receives = 0;
};

// Did compute wait, between two pieces, for something that came from another rank?
bool hears_between(const Tape& t, size_t begin, size_t end) {
  std::set<int> from;
  for (const Piece& p : t.pieces)
    if (p.kind == PieceKind::recv) from.insert(p.stream);
  return std::any_of(
      t.pieces.begin() + std::ptrdiff_t(begin), t.pieces.begin() + std::ptrdiff_t(end),
      [&](const Piece& p) { return p.kind == PieceKind::wait && p.stream == 0 && from.count(p.on); });
}

// Every receive but those that begin the rank's step is posted before the launches of the pass that precedes
// its use; every send is on a stream of its own, and compute waits for it behind a pass that came later, or
// once another rank has said that it was read, or at the step's end.
Counted expect_beside_compute(const Tape& t) {
  Counted n;
  const auto first_launch = std::find_if(t.pieces.begin(), t.pieces.end(),
                                         [](const Piece& p) { return p.launched && is_pass(p.action); });
  for (size_t i = 0; i < t.pieces.size(); i++) {
    const Piece& p = t.pieces[i];
    if (p.kind != PieceKind::send && p.kind != PieceKind::recv) continue;
    EXPECT_NE(p.stream, 0) << "rank " << t.rank << " piece " << i;
    const size_t waited = waited_at(t, i);
    const bool send = p.kind == PieceKind::send;
    (send ? n.sends : n.receives)++;
    if (!send && t.pieces.begin() + std::ptrdiff_t(i) < first_launch) continue;
    if (send && launches_between(t, i, t.pieces.size()) == 0) continue;  // the rank's last
    EXPECT_TRUE(launches_between(t, i, waited) > 0 || (send && hears_between(t, i, waited)))
        << "rank " << t.rank << ": compute waits at once for the " << (send ? "send" : "receive") << " of "
        << p.action << " " << p.microbatch;
  }
  return n;
}

TEST(Messages, TravelBesideCompute) {
  for (const auto& [schedule, pp, chunks] : {std::tuple("gpipe", 3, 1),
                                             {"1f1b", 3, 1},
                                             {"zb-h1", 3, 1},
                                             {"interleaved", 2, 2},
                                             {"zb-v", 2, 2},
                                             {"dualpipe", 4, 1}}) {
    const RunSpec run = stages(schedule, pp, chunks, 8);
    const Schedule actions = schedule_of(run);
    for (int rank = 0; rank < pp; rank++) {
      SCOPED_TRACE(fmt::format("{} rank {}", schedule, rank));
      const Counted n = expect_beside_compute(record_training(run, actions, 1, rank));
      const auto of = [&](Act a, Act b) {
        return std::count_if(actions.ranks[size_t(rank)].begin(), actions.ranks[size_t(rank)].end(),
                             [&](const Action& x) { return x.kind == a || x.kind == b; });
      };
      EXPECT_EQ(n.sends, of(Act::SendF, Act::SendB));
      EXPECT_EQ(n.receives, of(Act::RecvF, Act::RecvB));
    }
  }
}

// The input of the block below travels while a block goes backward, and no third one is there.
TEST(OffloadedInputs, ComeBackOneBlockAhead) {
  for (int pp : {1, 2}) {
    RunSpec run = stages("1f1b", pp, 1, 3);
    run.model.layers = 5 * pp, run.model.finish(run.data.seq_len);
    run.layout.recompute = "full", run.layout.offload = "inputs";
    const Tape t = record_training(run, schedule_of(run), 1, 0);
    std::vector<size_t> reads;
    for (size_t i = 0; i < t.pieces.size(); i++)
      if (t.pieces[i].name == kDiskRead) reads.push_back(i);
    ASSERT_EQ(reads.size(), 5u * 3u);

    for (size_t k = 0; k < reads.size(); k++) {
      SCOPED_TRACE(fmt::format("pp {} read {}", pp, k));
      const size_t waited = waited_at(t, reads[k]);
      ASSERT_LT(waited, t.pieces.size());
      if (k % 5 == 0) continue;  // the pass's first has nothing to hide behind
      EXPECT_GT(launches_between(t, reads[k], waited), 0);
      if (k % 5 >= 2) {
        EXPECT_GT(reads[k], waited_at(t, reads[k - 2])) << "three inputs are there";
      }
    }
  }
}

}  // namespace
}  // namespace trireme
