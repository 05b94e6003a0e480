// What ranks of a pipeline hold in closed form (cost/pipeline_held.h, cost/pipeline_layers.h) against what
// meta books of their steps, and the ranks that step_memory looks at against all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cost/activations.h"
#include "cost/pipeline_layers.h"
#include "cost/step_memory.h"
#include "model/stages.h"
#include "runtime/booking.h"
#include "search/search.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

constexpr int64_t kHeldSeq = 64, kHeldVocab = 1500;

RunSpec held_run(const char* schedule, int64_t pp, int64_t chunks, int64_t microbatches, const char* again,
                 int64_t layers, int64_t vocab) {
  RunSpec run;
  run.model = ModelSpec::of("llama");
  run.model.layers = layers, run.model.hidden = 48, run.model.heads = 4, run.model.kv_heads = 2;
  run.model.ffn = 136, run.model.vocab = vocab;
  run.data.seq_len = kHeldSeq, run.batch.micro = 1, run.batch.global = microbatches;
  run.precision.compute = "bf16";
  run.layout.pp = pp, run.layout.schedule = schedule, run.layout.chunks = chunks,
  run.layout.recompute = again;
  run.model.finish(kHeldSeq);
  return run;
}

// Bytes of a microbatch: of a block before and behind its input gradient, of the head's logits with what
// comes into it and its norm.
struct HeldBytes {
  double kept, waiting, head;
};
HeldBytes held_bytes(const RunSpec& run) {
  const double between = 2.0 * double(kHeldSeq * run.model.hidden), statistics = 4.0 * kHeldSeq;
  const auto whole = double(block_activation_bytes(run.model, {.rows = kHeldSeq}));
  const double logits = 2.0 * double(kHeldSeq * ((run.model.vocab + 63) / 64 * 64));
  return {run.layout.recompute == "full" ? between : whole,
          whole + between - double(run.model.heads) * statistics, logits + 2 * between + statistics};
}

SearchLayout held_layout(const RunSpec& run) {
  return {.gpus = run.layout.pp,
          .global = run.batch.global,
          .pp = run.layout.pp,
          .micro = run.batch.micro,
          .chunks = run.layout.chunks,
          .schedule = run.layout.schedule};
}

// Of blocks that cost alike: of each rank of every pipeline, as the run cuts them.
TEST(HeldBooking, RanksHaveTheirBlocks) {
  int64_t uneven = 0;
  for (const int64_t layers : {8, 13, 24, 61})
    for (const int64_t vocab : {301, 3001, 20011, 128256})
      for (const int64_t pp : {2, 3, 4, 7})
        for (const int64_t chunks : {1, 2, 3})
          for (const bool v : {false, true}) {
            if (pp * chunks > layers || (v && chunks != 2)) continue;
            StepCase c{.model = ModelSpec::of("llama"), .seq = 512, .pp = pp, .chunks = chunks};
            c.model.layers = layers, c.model.hidden = 256, c.model.heads = 8, c.model.vocab = vocab;
            c.model.ffn = 700, c.cut = StageCut::by_cost;
            c.model.finish(c.seq);
            if (v) c.order = PipelineOrder::zb_v;
            const int stages = int(pp * chunks);
            const std::vector<StageRange> cut = split_layers(c.model, c.seq, stages);
            std::vector<double> own(static_cast<size_t>(pp));
            for (int s = 0; s < stages; s++) {
              const int64_t rank = v && s >= pp ? stages - 1 - s : s % pp;
              own[size_t(rank)] += double(cut[size_t(s)].last - cut[size_t(s)].first);
            }
            for (int64_t r = 0; r < pp; r++)
              EXPECT_EQ(rank_layers(c, r), own[size_t(r)])
                  << fmt::format("{} layers, vocabulary {}, {} x {}{}, rank {}", layers, vocab, pp, chunks,
                                 v ? " v" : "", r);
            uneven += own.front() != own.back();
          }
  EXPECT_GT(uneven, 20);
}

// The fullest rank, within what one layer's backward pass and messages have of their own.
TEST(HeldBooking, IsTheClosedForm) {
  struct Choice {
    const char* schedule;
    int64_t chunks;
  };
  for (const Choice& c : {Choice{"1f1b", 1},
                          {"gpipe", 1},
                          {"interleaved", 2},
                          {"zb-h1", 1},
                          {"zb-h2", 1},
                          {"zb-v", 2},
                          {"v-half", 2},
                          {"v-min", 2},
                          {"dualpipe-v", 2}})
    for (const int64_t pp : {2, 3, 4})
      for (const int64_t microbatches : {2 * pp, 5 * pp})
        for (const char* again : {"none", "full"}) {
          RunSpec run = held_run(c.schedule, pp, c.chunks, microbatches, again, 4 * pp, kHeldVocab);
          ASSERT_TRUE(problems_of(run).empty()) << problems_of(run)[0].text;
          run = resolve(run, {.native_bf16 = true});
          const HeldBytes bytes = held_bytes(run);
          LayoutCase q{.model = run.model, .seq = kHeldSeq};
          const StepCase step = step_case(q, held_layout(run));
          // One block's backward pass and messages of either way have their own. Of several chunks that are
          // not alike microbatches in flight have more of the early ones, which may have a block more each.
          const double own = 1.75 * bytes.waiting + double(c.chunks > 1 ? pp : 0) * bytes.kept;
          // And each in flight may have its message on the way.
          const double message = 2.0 * double(kHeldSeq * run.model.hidden);
          const auto of = [&](int r) {
            double most = 0;
            for (const HeldMoment& at : held_moments(step.order, pp, c.chunks, microbatches, r))
              most = std::max(most,
                              held_layers(step, r) * (at.before * bytes.kept + at.waiting * bytes.waiting) +
                                  at.logits * bytes.head);
            return most;
          };
          double booked = 0;
          for (int r = 0; r < int(pp); r++) {
            SCOPED_TRACE(fmt::format("{} pp {} of {} microbatches, recompute {}, rank {}", c.schedule, pp,
                                     microbatches, again, r));
            const auto own_booked =
                double(book_stage(run, schedule_of(run), 1, {}, r).peak[size_t(Bucket::activations)]);
            booked = std::max(r > 0 && is_v(step.order) ? booked : 0, own_booked);
            double messages = 0;
            for (const HeldMoment& at : held_moments(step.order, pp, c.chunks, microbatches, r))
              messages = std::max(messages, double(c.chunks) * (at.before + at.waiting) * message);
            const double closed = of(r);
            EXPECT_LE(booked, closed + own + messages);
            // Of a V's others the fullest of them is meant; of its first up to two are on their way up, with
            // fewer blocks.
            const double up = 2 * (held_layers(step, r) - rank_layers(step, r)) * bytes.waiting;
            if (!is_v(step.order) || r == 0 || r == int(pp) - 1) {
              EXPECT_GE(booked, closed - up - 0.5 * bytes.waiting);
            }
            if (r == 0) booked = 0;
          }
        }
}

// Where blocks do not divide: of all ranks as booked the fullest, against the ranks that step_memory looks
// at.
TEST(HeldBooking, OfUnevenStagesTheFullestRankIsLookedAt) {
  constexpr int64_t kFewWords = 300;  // so that the last rank's logits weigh less than a block
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-h2"})
    for (const auto& [pp, layers] : {std::pair<int64_t, int64_t>{4, 7}, {4, 13}, {8, 15}, {8, 19}, {8, 23}})
      for (const char* again : {"none", "full"}) {
        const int64_t microbatches = 2 * pp + 3;
        SCOPED_TRACE(fmt::format("{} pp {} of {} layers, recompute {}", schedule, pp, layers, again));
        const RunSpec run =
            resolve(held_run(schedule, pp, 1, microbatches, again, layers, kFewWords), {.native_bf16 = true});
        const HeldBytes bytes = held_bytes(run);
        const double message = 2.0 * double(kHeldSeq * run.model.hidden);
        LayoutCase q{.model = run.model, .seq = kHeldSeq};
        const StepCase step = step_case(q, held_layout(run));
        double closed = 0, messages = 0, booked = 0;
        for (const PipelinePlace& p : pipeline_places(step))
          for (const HeldMoment& at : held_moments(step.order, pp, 1, microbatches, p.rank)) {
            const double held = p.held_layers * (at.before * bytes.kept + at.waiting * bytes.waiting);
            closed = std::max(closed, held + at.logits * bytes.head);
            messages = std::max(messages, (at.before + at.waiting) * message);
          }
        const Schedule all = schedule_of(run);
        for (int r = 0; r < int(pp); r++)
          booked = std::max(booked, double(book_stage(run, all, 1, {}, r).peak[size_t(Bucket::activations)]));
        EXPECT_LE(booked, closed + 1.75 * bytes.waiting + messages);
        EXPECT_GE(booked, closed - 0.5 * bytes.waiting);
      }
}

// Whatever is kept, recomputed and cut: no rank has more than step_memory says, and one has as much.
TEST(HeldBooking, StepMemoryIsTheMaximumOverRanks) {
  FitValues fits;
  fits.fill(1);
  int64_t inside = 0;  // of these the fullest is none of the first, the second and the last
  for (const PipelineOrder order :
       {PipelineOrder::one_f_one_b, PipelineOrder::gpipe, PipelineOrder::zb_h1, PipelineOrder::zb_h2,
        PipelineOrder::zb_v, PipelineOrder::v_half, PipelineOrder::v_min, PipelineOrder::dualpipe_v})
    for (const int64_t pp : {2, 3, 4, 5, 8, 13, 16})
      for (const int64_t layers : {7, 15, 16, 22, 23, 31, 48, 61, 126})
        for (const int64_t vocab : {301, 20011, 128256})
          for (const StageCut cut : {StageCut::even, StageCut::by_cost, StageCut::by_share})
            for (const int64_t chunks : {1, 2, 3})
              for (int choice = 0; choice < 12; choice++) {
                const bool v = is_v(order);
                if (v ? chunks != 2 : chunks > 1 && order != PipelineOrder::one_f_one_b) continue;
                if (pp * chunks > layers) continue;
                // nanotron's, which has no others.
                if (cut == StageCut::by_share &&
                    (chunks > 1 || (order != PipelineOrder::one_f_one_b && order != PipelineOrder::gpipe)))
                  continue;
                StepCase c{.model = ModelSpec::of("llama"), .seq = 512, .pp = pp, .chunks = chunks};
                c.model.layers = layers, c.model.hidden = 256, c.model.heads = 8, c.model.vocab = vocab;
                c.model.ffn = 700, c.cut = cut, c.order = order;
                c.model.finish(c.seq);
                c.recompute = choice % 2;
                if (choice / 2 % 2 == 1) c.attention = AttentionKind::unfused;
                c.microbatches = choice / 4 == 0 ? 1 : choice / 4 == 1 ? pp + 1 : 3 * pp;
                if (choice % 3 > 0) c.dp = 64, c.zero = 3;  // states weigh little
                double most = 0;
                int64_t fullest = 0;
                for (int64_t r = 0; r < pp; r++) {
                  const double tables = v ? (r == 0 ? 2 : 0) : (r == 0 || r == pp - 1 ? 1 : 0);
                  const double all =
                      rank_memory(c, fits, {r, rank_layers(c, r), held_layers(c, r), tables}).total;
                  if (all > most) most = all, fullest = r;
                }
                inside += fullest > 1 && fullest < pp - 1;
                ASSERT_EQ(step_memory(c, fits).total, most) << fmt::format(
                    "{} x {} ranks of {} layers, vocabulary {}, order {}, cut {}, choice {}, "
                    "fullest {}",
                    pp, chunks, layers, vocab, int(order), int(cut), choice, fullest);
              }
  EXPECT_GT(inside, 100);
}

}  // namespace
}  // namespace trireme
