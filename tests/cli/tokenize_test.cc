// `trireme tokenize`: mixed texts, any number of threads, and a signal in the middle.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <system_error>

#include "data/token_shard.h"
#include "folder.h"
#include "process.h"

namespace trireme::test {
namespace {

// Lines that are all different, of about `bytes`.
std::string prose(int64_t bytes, int seed) {
  std::string text;
  for (int i = seed; int64_t(text.size()) < bytes; i++)
    text += "line " + std::to_string(i) + " of " + std::to_string(i % 1000 * 7919 % 1000) +
            ", the oars rise and fall.\n";
  return text;
}

std::vector<int32_t> tokens_of(const fs::path& shard) {
  TokenShard s = TokenShard::open(shard);
  std::vector<int32_t> ids(size_t(s.tokens()));
  s.read(0, ids, 1 << 30);
  return ids;
}

TEST(Tokenize, MixedTextsOnAnyThreads) {
  TempFolder f;
  fs::create_directories(f / "texts/deep");
  for (int i = 0; i < 30; i++)
    write_text_atomic(f / fmt::format("texts/deep/{}.txt", i), prose(2000 + 100 * i, i));
  std::string lines;
  for (int i = 0; i < 400; i++)
    lines += "{\"body\": \"document " + std::to_string(i) + " \\u00e9\", \"n\": 1}\n";
  write_text_atomic(f / "texts/docs.jsonl", lines);
  write_text_atomic(f / "long.txt", prose(3'000'000, 1000));
  std::vector<std::string> first;
  for (const char* threads : {"1", "3"}) {
    Ran r = trireme(f.path(),
                    {"tokenize", (f / "texts").string(), (f / "long.txt").string(), "--key", "body", "--out",
                     (f / threads).string(), "--vocab", "400", "--threads", threads, "--special", "<|pad|>"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.out.find("MB/s on " + std::string(threads) + " thread"), std::string::npos) << r.out;
    EXPECT_NE(r.err.find("encode 100 %"), std::string::npos) << r.err;
    std::vector<std::string> now;
    for (const char* file : {"tokenizer.json", "train.bin", "train.idx", "valid.bin", "valid.idx"})
      now.push_back(read_text(f / threads / file));
    if (first.empty()) first = now;
    EXPECT_EQ(now == first, true) << "on " << threads << " threads";
  }
  EXPECT_EQ(TokenShard::open(f / "1/train").documents() + TokenShard::open(f / "1/valid").documents(), 431);
  EXPECT_NE(first[0].find("<|pad|>"), std::string::npos);
  // Again with that tokenizer: the same tokens.
  Ran again =
      trireme(f.path(), {"tokenize", (f / "texts").string(), (f / "long.txt").string(), "--key", "body",
                         "--out", (f / "again").string(), "--tokenizer", (f / "1/tokenizer.json").string()});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(tokens_of(f / "again/train"), tokens_of(f / "1/train"));
}

TEST(Tokenize, TheEndOfASingleTextIsHeldOut) {
  TempFolder f;
  write_text_atomic(f / "a.txt", prose(50'000, 1));
  Ran r = trireme(f.path(), {"tokenize", (f / "a.txt").string(), "--out", (f / "out").string(), "--vocab",
                             "300", "--hold-out", "0.2"});
  ASSERT_EQ(r.code, 0) << r.err;
  const double train = double(tokens_of(f / "out/train").size()),
               valid = double(tokens_of(f / "out/valid").size());
  EXPECT_NEAR(valid / (train + valid), 0.2, 0.02);
}

// What was held out before would pass for the held-out part of the new text.
TEST(Tokenize, AnOldValidShardIsNoneOfANewText) {
  TempFolder f;
  write_text_atomic(f / "a.txt", prose(50'000, 1));
  write_text_atomic(f / "b.jsonl", "{\"text\": \"all of it is for training\"}\n");
  auto tokenize = [&](const char* text, const char* hold_out) {
    return trireme(f.path(), {"tokenize", (f / text).string(), "--out", (f / "out").string(), "--vocab",
                              "300", "--hold-out", hold_out});
  };
  ASSERT_EQ(tokenize("a.txt", "0.2").code, 0);
  const Files before = files_in(f.path());
  for (auto [text, share] : {std::pair("a.txt", "0"), {"b.jsonl", "0"}, {"b.jsonl", "0.001"}}) {
    Ran r = tokenize(text, share);
    EXPECT_EQ(r.code, 2) << text << share;
    EXPECT_NE(r.err.find("out/valid.bin is of an earlier run"), std::string::npos) << r.err;
    EXPECT_EQ(files_in(f.path()), before) << text << share;
  }
  fs::remove(f / "out/valid.bin");
  EXPECT_NE(tokenize("a.txt", "0").err.find("out/valid.idx is of an earlier run"), std::string::npos);
  fs::remove(f / "out/valid.idx");
  EXPECT_EQ(tokenize("a.txt", "0").code, 0);
  EXPECT_FALSE(fs::exists(f / "out/valid.bin"));
  EXPECT_EQ(tokenize("b.jsonl", "0.001").code, 0);
}

TEST(Tokenize, ASignalLeavesNothingHalfWritten) {
  TempFolder f;
  write_text_atomic(f / "a.txt", prose(20'000'000, 1));
  Process p(
      trireme_args({"tokenize", (f / "a.txt").string(), "--out", (f / "out").string(), "--threads", "1"}),
      f.path());
  ASSERT_TRUE(p.wait_for_err("count words"));
  p.send(SIGTERM);
  Ran r = p.wait();
  EXPECT_EQ(r.code, 3) << r.err;
  EXPECT_NE(r.err.find("interrupted: nothing was written"), std::string::npos) << r.err;
  std::error_code none;
  EXPECT_TRUE(!fs::exists(f / "out", none) || fs::is_empty(f / "out"));
}

}  // namespace
}  // namespace trireme::test
