#include "data/prefetch.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "data/shard_writer.h"
#include "support.h"

namespace trireme {
namespace {

using Ids = std::vector<int32_t>;

struct Fetched {
  Ids tokens, targets, positions;
  bool operator==(const Fetched&) const = default;
};

class Prefetch : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b", "c"}) {
      ShardWriter w(folder_ / name, 5000);
      Ids ids(size_t(600 + 100 * (name[0] - 'a')));
      std::iota(ids.begin(), ids.end(), 1000 * (name[0] - 'a'));
      w.add_document(ids);
      w.commit();
    }
  }
  DataLoader loader(std::vector<double> weights = {3, 2, 1}, int64_t vocab = 5000, int64_t dp = 1,
                    const Ramp& ramp = {}) {
    std::vector<TokenShard> shards;
    for (size_t i = 0; i < weights.size(); i++)
      shards.push_back(TokenShard::open(folder_ / std::string(1, char('a' + i))));
    return DataLoader(std::move(shards), weights,
                      {.vocab = vocab,
                       .seq_len = 7,
                       .batch = {.global = 12 * dp, .micro = 4, .ramp = ramp},
                       .dp = dp,
                       .seed = 3});
  }
  template <class From>
  static Fetched get(From& from, int64_t step, int64_t mb, int64_t rank) {
    Fetched b{Ids(28, -1), Ids(28, -1), Ids(28, -1)};
    if constexpr (std::is_same_v<From, DataLoader>)
      from.get(step, mb, rank, b.tokens, b.targets, b.positions);
    else
      from.get(step, mb, b.tokens, b.targets, b.positions);
    return b;
  }
  TestFolder folder_;
};

TEST_F(Prefetch, TheSameBatchesAsInLine) {
  for (int64_t depth : {1, 2, 3, 7, 100})
    for (int64_t rank : {0, 1}) {
      DataLoader plain = loader({3, 2, 1}, 5000, 2), read = loader({3, 2, 1}, 5000, 2);
      Prefetcher p(read, {.depth = depth, .first_step = 5, .last_step = 40, .dp_rank = rank});
      for (int64_t step = 5; step <= 40; step++)
        for (int64_t mb = 0; mb < 3; mb++)
          ASSERT_EQ(get(p, step, mb, rank), get(plain, step, mb, rank)) << depth << " " << step << " " << mb;
    }
}

// Steps have as many microbatches as their batch, which grows.
TEST_F(Prefetch, FollowsAGrowingBatch) {
  const Ramp ramp = {{.value = 4, .until = 6}, {.value = 8, .until = 9}};
  for (int64_t depth : {1, 4}) {
    DataLoader plain = loader({3, 2, 1}, 5000, 1, ramp), read = loader({3, 2, 1}, 5000, 1, ramp);
    Prefetcher p(read, {.depth = depth, .first_step = 5, .last_step = 12});
    for (int64_t step = 5; step <= 12; step++)
      for (int64_t mb = 0; mb < plain.microbatches(step); mb++)
        ASSERT_EQ(get(p, step, mb, 0), get(plain, step, mb, 0)) << depth << " " << step << " " << mb;
  }
}

// A step that is run twice, a leap, and a start elsewhere than announced.
TEST_F(Prefetch, AnyOrder) {
  for (int64_t depth : {1, 2, 5}) {
    DataLoader plain = loader(), read = loader();
    Prefetcher p(read, {.depth = depth, .first_step = 1, .last_step = 30});
    const std::pair<int64_t, int64_t> order[] = {{4, 0}, {4, 1},  {4, 2},  {4, 0},  {4, 1},
                                                 {4, 2}, {5, 0},  {5, 1},  {1, 2},  {2, 0},
                                                 {2, 0}, {30, 2}, {30, 2}, {30, 1}, {1, 0}};
    for (int round = 0; round < 20; round++)
      for (auto [step, mb] : order)
        ASSERT_EQ(get(p, step, mb, 0), get(plain, step, mb, 0)) << step << " " << mb;
  }
}

// Each row is of the source that the mixture says, and each source goes through its own epochs.
TEST_F(Prefetch, RowsComeFromTheMixture) {
  DataLoader l = loader();
  Mixture m(std::vector<double>{3, 2, 1});
  std::vector<std::vector<int32_t>> seen(3);
  for (int64_t step = 1; step <= 60; step++)
    for (int64_t mb = 0; mb < 3; mb++) {
      Fetched b = get(l, step, mb, 0);
      for (int64_t row = 0; row < 4; row++) {
        const Mixture::Draw d = m.at(l.sample(step, mb, 0, row));
        const int32_t first = b.tokens[size_t(row * 7)];
        ASSERT_EQ(first / 1000, d.source);
        ASSERT_EQ(first % 1000, 7 * l.window(d));
        seen[size_t(d.source)].push_back(first);
      }
    }
  for (int64_t s = 0; s < 3; s++) {
    std::vector<int32_t>& all = seen[size_t(s)];
    ASSERT_GE(int64_t(all.size()), l.samples(s));
    EXPECT_EQ(std::set<int32_t>(all.begin(), all.begin() + l.samples(s)).size(), size_t(l.samples(s)));
  }
}

TEST_F(Prefetch, WithoutWeightsAllEndTheirEpochsTogether) {
  std::vector<TokenShard> shards;
  for (const char* n : {"a", "c"}) shards.push_back(TokenShard::open(folder_ / n));
  DataLoader l(std::move(shards), {}, {.vocab = 5000, .seq_len = 7});
  Mixture m = l.mixture();
  const int64_t all = l.samples(0) + l.samples(1);
  auto drawn = m.drawn(all);
  EXPECT_EQ(drawn[0], l.samples(0));
  EXPECT_EQ(drawn[1], l.samples(1));
}

TEST_F(Prefetch, AnErrorComesAtItsMicrobatch) {
  // Ids from 500 on are outside: a batch of the run refuses, the same one in line and ahead.
  DataLoader plain = loader({1}, 500), read = loader({1}, 500);
  Prefetcher p(read, {.depth = 6, .first_step = 1, .last_step = 30});
  int refused = 0;
  for (int64_t step = 1; step <= 30; step++)
    for (int64_t mb = 0; mb < 3; mb++) {
      const std::string want = refusal([&] { get(plain, step, mb, 0); });
      refused += !want.empty();
      EXPECT_EQ(refusal([&] { get(p, step, mb, 0); }), want);
      if (!want.empty()) {
        EXPECT_EQ(refusal([&] { get(p, step, mb, 0); }), want);  // and again
      }
    }
  EXPECT_GT(refused, 5);
  EXPECT_LT(refused, 85);
}

TEST_F(Prefetch, StopsAtOnceWhateverItDoes) {
  for (int64_t depth : {1, 3, 1000})
    for (int gets : {0, 1, 4}) {
      DataLoader l = loader();
      Prefetcher p(l, {.depth = depth, .first_step = 1, .last_step = 1000000});
      for (int i = 0; i < gets; i++) get(p, 1 + i / 3, i % 3, 0);
    }
  DataLoader l = loader();
  Prefetcher none(l, {.depth = 2, .first_step = 9, .last_step = 8});  // nothing to read
}

}  // namespace
}  // namespace trireme
