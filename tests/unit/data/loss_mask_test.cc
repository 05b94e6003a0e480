// Loss masks: what is written is read, targets outside the mask are -1, counts of a step are what its batches
// hold, and files that do not fit are rejected.
#include "data/loss_mask.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "data/loader.h"
#include "data/shard_content.h"
#include "data/shard_writer.h"
#include "support.h"

namespace trireme {
namespace {

using Ids = std::vector<int32_t>;

// Documents of 1, 2, ... 20, 1, 2, ... tokens; token i of the concatenation has id i, and is a target if
// i % 3 == 1.
class Masked : public testing::Test {
 protected:
  fs::path write(int32_t tokens) {
    ShardWriter w(folder_ / "m", 1 << 20);
    for (int32_t at = 0, length = 1; at < tokens; length = length % 20 + 1) {
      Ids d(size_t(std::min(length, tokens - at)));
      std::iota(d.begin(), d.end(), at);
      std::vector<uint8_t> targets;
      for (int32_t id : d) targets.push_back(id % 3 == 1);
      w.add_document(d, targets);
      begins_.insert(at);
      at += int32_t(d.size());
    }
    w.commit();
    return folder_ / "m";
  }
  bool target(int32_t token) const { return token % 3 == 1 && begins_.count(token) == 0; }

  TestFolder folder_;
  std::set<int32_t> begins_;
};

std::string fault_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST_F(Masked, TargetsOutsideTheMaskAreMinusOne) {
  for (const char* documents : {"attend", "separate", "whole"})
    for (int64_t dp : {1, 2}) {
      LoaderOptions o{.vocab = 1 << 20, .seq_len = 11, .batch = {.global = 8, .micro = 2}, .dp = dp};
      o.separate = documents != std::string("attend");
      o.whole = documents == std::string("whole");
      DataLoader l(TokenShard::open(write(1000)), o);
      Mixture count = l.mixture();
      std::multiset<int32_t> seen;  // targets of one epoch's steps
      for (int64_t step = 1; step <= 5; step++) {
        int64_t targets = 0;
        for (int64_t m = 0; m < l.microbatches(step); m++)
          for (int64_t r = 0; r < dp; r++) {
            Ids tokens(22), next(22), positions(22);
            l.get(step, m, r, tokens, next, positions);
            for (size_t i = 0; i < 22; i++) {
              if (next[i] < 0) continue;
              targets++;
              EXPECT_EQ(next[i], tokens[i] + 1);
              EXPECT_TRUE(target(next[i])) << next[i];
              if (o.whole) {
                EXPECT_EQ(begins_.count(next[i]), 0u);  // never the next document's
              }
            }
          }
        EXPECT_EQ(l.targets_of(count, step), targets) << documents << " step " << step;
        EXPECT_GT(targets, 0);
      }
    }
}

TEST_F(Masked, WholeDocumentsAreNotDivided) {
  LoaderOptions o{.vocab = 1 << 20, .seq_len = 11, .separate = true, .whole = true};
  o.order = SampleOrder::sequential;
  DataLoader l(TokenShard::open(write(1000)), o);
  std::set<int32_t> targets;
  for (int64_t w = 0; w < l.samples(); w++) {
    Ids tokens(11), next(11), positions(11);
    l.get_window(w, tokens, next, positions);
    for (size_t i = 0; i < 11; i++) {
      if (positions[i] == 0 && next[i] >= 0) {
        EXPECT_EQ(begins_.count(tokens[i]), 1u);
      }
      if (i > 0 && positions[i] > 0) {
        EXPECT_EQ(positions[i], positions[i - 1] + 1);
      }
      if (next[i] >= 0) {
        EXPECT_TRUE(targets.insert(next[i]).second) << next[i];  // once
      }
    }
  }
  // Each target of a document's first 12 tokens.
  for (int32_t begin : begins_)
    for (int32_t t = begin + 1; t < std::min(begin + 12, 1000) && begins_.count(t) == 0; t++)
      EXPECT_EQ(targets.count(t), target(t) ? 1u : 0u) << t;
  EXPECT_NE(l.note(0).find("longer than data.seq_len + 1 = 12 tokens cut"), std::string::npos) << l.note(0);
}

TEST_F(Masked, FilesThatDoNotFitAreRejected) {
  const fs::path shard = write(100), mask = folder_ / "m.mask";
  const ShardContent content = check_content(TokenShard::open(shard), 1 << 20);
  ASSERT_TRUE(content.mask.has_value());
  const std::string good = read_text(mask);
  std::string bad = good;
  bad[20] = char(bad[20] ^ 1);
  write_text_atomic(mask, bad);
  const std::string damaged = fault_of([&] { check_content(TokenShard::open(shard), 1 << 20); });
  EXPECT_NE(damaged.find("m.mask: differs from the content"), std::string::npos) << damaged;
  EXPECT_NE(content_of(TokenShard::open(shard)), content);
  for (const std::string& text :
       {std::string("no mask"), good.substr(0, 20), good + "x", std::string(good).replace(8, 1, "e")}) {
    write_text_atomic(mask, text);
    EXPECT_NE(fault_of([&] { TokenShard::open(shard); }).find("m.mask"), std::string::npos);
  }
  fs::remove(mask);
  EXPECT_NE(fault_of([&] { TokenShard::open(shard); }).find("is missing"), std::string::npos);
  // A shard without a mask takes the place of one with it.
  write_text_atomic(mask, good);
  ShardWriter plain(shard, 1 << 20);
  plain.add_document(Ids{1, 2, 3});
  plain.commit();
  EXPECT_FALSE(fs::exists(mask));
  EXPECT_EQ(TokenShard::open(shard).targets(0, 3), 3);
}

}  // namespace
}  // namespace trireme
