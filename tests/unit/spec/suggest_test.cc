#include "spec/suggest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace trireme {
namespace {

TEST(EditDistance, HandWorked) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("layres", "layers"), 1);  // a swap is one edit
  EXPECT_EQ(edit_distance("ca", "abc"), 3);         // optimal string alignment, not unrestricted Damerau
}

// Against the definition by recursion, on random strings over a small alphabet.
int by_definition(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return int(a.size() + b.size());
  std::string_view a1 = a.substr(0, a.size() - 1), b1 = b.substr(0, b.size() - 1);
  int d = std::min(
      {by_definition(a1, b) + 1, by_definition(a, b1) + 1, by_definition(a1, b1) + (a.back() != b.back())});
  if (a.size() > 1 && b.size() > 1 && a.back() == b[b.size() - 2] && b.back() == a[a.size() - 2])
    d = std::min(d, by_definition(a.substr(0, a.size() - 2), b.substr(0, b.size() - 2)) + 1);
  return d;
}
TEST(EditDistance, IsTheDefinition) {
  uint64_t key = rng_key(7, 0, "edit_distance");
  uint64_t n = 0;
  auto word = [&] {
    std::string s(below(key, n++, 6), ' ');
    for (char& c : s) c = char('a' + below(key, n++, 3));
    return s;
  };
  for (int i = 0; i < 300; i++) {
    std::string a = word(), b = word();
    EXPECT_EQ(edit_distance(a, b), by_definition(a, b)) << a << " " << b;
    EXPECT_EQ(edit_distance(a, b), edit_distance(b, a));
  }
}

TEST(Suggest, TheNearestKey) {
  std::vector<std::string> known = {"model.layers", "model.heads",     "model.kv_heads", "model.hidden",
                                    "train.steps",  "optimizer.lr",    "batch.micro",    "optimizer.warmup",
                                    "layout.dp",    "optimizer.betas", "layout.tp"};
  EXPECT_EQ(suggest("model.layer", known), "model.layers");
  EXPECT_EQ(suggest("model.haeds", known), "model.heads");
  EXPECT_EQ(suggest("optimizer.warm_up", known), "optimizer.warmup");
  EXPECT_EQ(suggest("lr", known), "optimizer.lr");        // no section
  EXPECT_EQ(suggest("train.lr", known), "optimizer.lr");  // another section
  EXPECT_EQ(suggest("modle.layers", known), "model.layers");
  EXPECT_EQ(suggest("model.dropout", known), "");
  EXPECT_EQ(suggest("", known), "");
  EXPECT_EQ(suggest(std::string(100000, 'a'), known), "");
}

TEST(Suggest, NamesOfOtherPrograms) {
  const std::vector<std::string> known = {"model.experts_per_token", "model.top_groups", "train.steps"};
  EXPECT_EQ(elsewhere("model.top_k", known), "model.experts_per_token");
  EXPECT_EQ(elsewhere("max_iters", known), "train.steps");
  EXPECT_EQ(elsewhere("optimizer.learning_rate", known), "") << "no key of this file";
  EXPECT_EQ(elsewhere("model.layer", known), "");
}

}  // namespace
}  // namespace trireme
