#include "data/loader.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "data/shard_writer.h"
#include "support.h"

namespace trireme {
namespace {

using Ids = std::vector<int32_t>;

// Tokens 0, 1, 2, ... in documents of 7: what a batch holds can be told from its ids.
class Loader : public testing::Test {
 protected:
  TokenShard shard(int32_t tokens) {
    ShardWriter w(folder_ / "s", 1 << 20);
    for (int32_t at = 0; at < tokens; at += 7) {
      Ids d(size_t(std::min(7, tokens - at)));
      std::iota(d.begin(), d.end(), at);
      w.add_document(d);
    }
    w.commit();
    return TokenShard::open(folder_ / "s");
  }
  static LoaderOptions options(int64_t seq_len, SampleOrder order = SampleOrder::shuffled) {
    return {.vocab = 1 << 20, .seq_len = seq_len, .order = order};
  }
  TestFolder folder_;
};

struct Batch {
  Ids tokens, targets, positions;
};
Batch get(DataLoader& l, int64_t step, int64_t microbatch, int64_t dp_rank) {
  size_t n = size_t(l.options().batch.micro * l.options().seq_len);
  Batch b{Ids(n, -7), Ids(n, -7), Ids(n, -7)};
  l.get(step, microbatch, dp_rank, b.tokens, b.targets, b.positions);
  return b;
}

// Documents of 7 tokens: positions are places in them, from the window's start on where one began before it.
TEST_F(Loader, SeparateDocumentsHavePositionsOfTheirOwn) {
  for (int64_t seq : {1, 5, 7, 16}) {
    LoaderOptions o = options(seq, SampleOrder::sequential);
    o.separate = true;
    DataLoader l(shard(101), o);
    for (int64_t i = 0; i < l.samples(); i++) {
      Batch b = get(l, i + 1, 0, 0);
      for (int64_t k = 0; k < seq; k++) {
        const int64_t token = i * seq + k;
        ASSERT_EQ(b.tokens[size_t(k)], token);
        ASSERT_EQ(b.targets[size_t(k)], token + 1);  // the next document's first token too
        ASSERT_EQ(b.positions[size_t(k)], token - std::max(i * seq, token / 7 * 7));
      }
    }
  }
}

TEST_F(Loader, SequentialSamplesAreTheShiftedWindows) {
  for (int64_t seq : {1, 2, 5, 9}) {
    DataLoader l(shard(101), options(seq, SampleOrder::sequential));
    EXPECT_EQ(l.samples(), 100 / seq);
    EXPECT_EQ(l.shard().tokens(), 101);
    for (int64_t i = 0; i < 2 * l.samples(); i++) {  // the second epoch begins again
      Batch b = get(l, i + 1, 0, 0);
      for (int64_t k = 0; k < seq; k++) {
        ASSERT_EQ(b.tokens[size_t(k)], i % l.samples() * seq + k);
        ASSERT_EQ(b.targets[size_t(k)], b.tokens[size_t(k)] + 1);
        ASSERT_EQ(b.positions[size_t(k)], k);
      }
    }
  }
}

TEST_F(Loader, AnEpochDrawsEveryWindowOnceInAnOrderOfItsOwn) {
  DataLoader l(shard(1003), options(10));
  ASSERT_EQ(l.samples(), 100);
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; epoch++) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 100; i++) order.push_back(l.window(epoch * 100 + i));
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 100u);
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    orders.push_back(order);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  LoaderOptions other = options(10);
  other.seed = 2;
  DataLoader m(shard(1003), other);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < 100; i++) order.push_back(m.window(i));
  EXPECT_NE(order, orders[0]);
}

// The same global batch whatever the split: every replica and microbatch together draw the same samples in
// the same places of the step.
TEST_F(Loader, AnySplitDrawsTheSameGlobalBatch) {
  const int64_t global = 48, seq = 6;
  shard(777);
  for (auto order : {SampleOrder::shuffled, SampleOrder::sequential}) {
    LoaderOptions whole = options(seq, order);
    whole.batch.global = whole.batch.micro = global;
    DataLoader one(TokenShard::open(folder_ / "s"), whole);
    for (int64_t dp : {1, 2, 3, 4, 6})
      for (int64_t micro : {1, 2, 4}) {
        LoaderOptions o = options(seq, order);
        o.batch = {.global = global, .micro = micro};
        o.dp = dp;
        DataLoader l(TokenShard::open(folder_ / "s"), o);
        EXPECT_EQ(l.microbatches(1), global / dp / micro);
        Mixture count = l.mixture();
        EXPECT_EQ(l.targets_of(count, 1), global * seq);
        for (int64_t step : {1, 2, 9}) {
          Batch all = get(one, step, 0, 0);
          std::set<int64_t> drawn;
          for (int64_t m = 0; m < l.microbatches(1); m++)
            for (int64_t r = 0; r < dp; r++) {
              Batch part = get(l, step, m, r);
              for (int64_t row = 0; row < micro; row++) {
                int64_t sample = l.sample(step, m, r, row), place = sample - (step - 1) * global;
                ASSERT_TRUE(place >= 0 && place < global);
                drawn.insert(place);
                for (int64_t k = 0; k < seq; k++) {
                  ASSERT_EQ(part.tokens[size_t(row * seq + k)], all.tokens[size_t(place * seq + k)]);
                  ASSERT_EQ(part.targets[size_t(row * seq + k)], all.targets[size_t(place * seq + k)]);
                  ASSERT_EQ(part.positions[size_t(row * seq + k)], k);
                }
              }
            }
          EXPECT_EQ(drawn.size(), size_t(global));
        }
      }
  }
}

// A batch that grows draws the samples that any batch draws: each once, in order of steps, microbatches,
// replicas and rows; also where a branch continues.
TEST_F(Loader, AGrowingBatchDrawsTheSameSamples) {
  for (const int64_t skipped : {0, 3}) {
    LoaderOptions o = options(6);
    o.batch = {.global = 12, .micro = 2, .ramp = {{.value = 4, .until = 2}, {.value = 8, .until = 5}}};
    o.dp = 2;
    DataLoader l(shard(777), o);
    if (skipped > 0) l.start_at({.step = skipped, .samples = 100});
    Mixture count = l.mixture();
    int64_t next = skipped > 0 ? 100 : 0;
    for (int64_t step = skipped + 1; step <= 8; step++) {
      const int64_t global = step <= 2 ? 4 : step <= 5 ? 8 : 12;
      EXPECT_EQ(l.microbatches(step), global / 4);
      EXPECT_EQ(l.targets_of(count, step), global * 6);
      EXPECT_EQ(l.samples_before(step - 1), next);
      for (int64_t m = 0; m < l.microbatches(step); m++)
        for (int64_t r = 0; r < 2; r++)
          for (int64_t row = 0; row < 2; row++) ASSERT_EQ(l.sample(step, m, r, row), next++);
    }
    EXPECT_EQ(next, skipped > 0 ? 100 + 2 * 8 + 3 * 12 : 2 * 4 + 3 * 8 + 3 * 12);
    o.batch.ramp[0].value = 6;
    EXPECT_THROW(DataLoader(shard(777), o), Error);
  }
}

TEST_F(Loader, IsPure) {
  LoaderOptions o = options(8);
  o.batch = {.global = 6, .micro = 3};
  DataLoader l(shard(500), o);
  Batch late = get(l, 40, 1, 0), early = get(l, 1, 0, 0);
  DataLoader again(shard(500), o);  // as a run that resumes at step 40
  EXPECT_EQ(get(again, 40, 1, 0).tokens, late.tokens);
  EXPECT_EQ(get(l, 1, 0, 0).tokens, early.tokens);
  EXPECT_NE(early.tokens, late.tokens);
}

// Written down once: a change of the order would silently change every run that is resumed.
TEST_F(Loader, TheOrderIsThisOne) {
  DataLoader l(shard(1003), options(10));
  std::vector<int64_t> order;
  for (int64_t i = 0; i < 8; i++) order.push_back(l.window(i));
  for (int64_t i = 100; i < 104; i++) order.push_back(l.window(i));
  EXPECT_EQ(order, (std::vector<int64_t>{59, 58, 1, 26, 5, 41, 0, 37, 67, 98, 5, 86}));
}

TEST_F(Loader, WindowsForEvaluation) {
  DataLoader l(shard(53), options(10));  // 5 windows and 3 tokens that are dropped
  ASSERT_EQ(l.samples(), 5);
  Ids tokens(10), targets(10), positions(10), seen;
  for (int64_t w = 0; w < l.samples(); w++) {
    l.get_window(w, tokens, targets, positions);
    seen.insert(seen.end(), targets.begin(), targets.end());
  }
  Ids want(50);
  std::iota(want.begin(), want.end(), 1);
  EXPECT_EQ(seen, want);
  EXPECT_EQ(positions.back(), 9);
}

TEST_F(Loader, TheShortestShard) {
  DataLoader l(shard(11), options(10));
  EXPECT_EQ(l.samples(), 1);
  EXPECT_EQ(get(l, 5, 0, 0).targets.back(), 10);
  for (int32_t tokens : {0, 1, 10}) {
    std::string why = refusal([&] { DataLoader(shard(tokens), options(10)); });
    EXPECT_NE(why.find(fmt::format("has {} tokens; one sample of data.seq_len = 10 needs 11", tokens)),
              std::string::npos)
        << why;
  }
  EXPECT_NE(refusal([&] { DataLoader(shard(0), options(1)); }), "");
}

TEST_F(Loader, RefusesWhatCannotBe) {
  LoaderOptions uneven = options(5);
  uneven.batch = {.global = 10, .micro = 4};
  EXPECT_NE(refusal([&] { DataLoader(shard(100), uneven); }).find("batch.global = 10"), std::string::npos);
  uneven.batch.micro = 5;
  uneven.dp = 4;
  EXPECT_NE(refusal([&] { DataLoader(shard(100), uneven); }).find("4 * 5"), std::string::npos);
  LoaderOptions small = options(5);
  small.vocab = 60;  // the shard holds 0 to 99
  DataLoader l(shard(100), small);
  int refused = 0;
  for (int64_t step = 1; step <= l.samples(); step++)
    refused += refusal([&] { get(l, step, 0, 0); }).find("outside the vocabulary of 60") != std::string::npos;
  EXPECT_EQ(refused, 8);  // windows 11 to 18 have a token or target from 60 on
  EXPECT_NE(refusal([&] { check_shard(folder_ / "s", 60); }).find("token 4 of document 8 is 60"),
            std::string::npos);
  check_shard(folder_ / "s", 100);
  LoaderOptions wide = options(5);
  wide.batch.global = wide.batch.micro = int64_t(1) << 31;
  DataLoader far(shard(100), wide);
  EXPECT_NE(refusal([&] { far.sample(INT64_MAX, 0, 0, 0); }).find("2^63"), std::string::npos);
}

TEST(SampleOrder, Names) {
  EXPECT_EQ(sample_order("shuffled"), SampleOrder::shuffled);
  EXPECT_EQ(sample_order("sequential"), SampleOrder::sequential);
  EXPECT_NE(refusal([] { sample_order("random"); }).find("random"), std::string::npos);
}

}  // namespace
}  // namespace trireme
