#include "text/train_bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "base/json.h"
#include "base/rng.h"
#include "folder.h"
#include "source_dir.h"
#include "text/split.h"

namespace trireme {
namespace {

// The definition, counted anew for every merge: the most frequent adjacent pair, of equals the one of
// smallest ids.
std::vector<std::array<int32_t, 2>> merges_slowly(std::string_view text, const Tokenizer& bytes, int32_t n) {
  std::map<std::vector<int32_t>, int64_t> words;
  split_words(text, [&](std::string_view w) {
    std::vector<int32_t> ids;
    for (char c : w) ids.push_back(bytes.encode(std::string_view(&c, 1))[0]);
    words[ids]++;
  });
  std::vector<std::array<int32_t, 2>> out;
  std::vector<std::string> tokens;
  for (int32_t id = 0; id < 256; id++) tokens.emplace_back(bytes.token(id));
  while (int32_t(tokens.size()) < n) {
    std::map<std::array<int32_t, 2>, int64_t> counts;
    for (auto& [ids, count] : words)
      for (size_t i = 0; i + 1 < ids.size(); i++) counts[{ids[i], ids[i + 1]}] += count;
    std::array<int32_t, 2> best{};
    int64_t most = 1;
    for (auto& [pair, count] : counts)
      if (count > most) best = pair, most = count;
    if (most < 2) break;
    std::string joined = tokens[size_t(best[0])] + tokens[size_t(best[1])];
    auto same = std::find(tokens.begin(), tokens.end(), joined);
    int32_t result = int32_t(same - tokens.begin());
    if (same == tokens.end()) tokens.push_back(joined);
    out.push_back(best);
    std::map<std::vector<int32_t>, int64_t> next;
    for (auto& [ids, count] : words) {
      std::vector<int32_t> merged;
      for (size_t i = 0; i < ids.size(); i++) {
        bool here = i + 1 < ids.size() && ids[i] == best[0] && ids[i + 1] == best[1];
        merged.push_back(here ? result : ids[i]);
        i += here;
      }
      next[merged] += count;
    }
    words = std::move(next);
  }
  return out;
}

std::vector<std::array<int32_t, 2>> pairs_of(const Tokenizer& t) {
  std::vector<std::array<int32_t, 2>> out;
  for (const auto& m : t.merges()) out.push_back({m.left, m.right});
  return out;
}

Tokenizer train(std::string_view text, BpeOptions options) {
  return train_bpe(std::span(&text, 1), options);
}

TEST(TrainBpe, LearnsWhatThePeerLearns) {
  auto golden = test::source_dir() / "tests/unit/text/golden";
  auto cases = nlohmann::json::parse(read_text(golden / "cases.json"));
  Tokenizer peer = Tokenizer::load(golden / "tokenizer.json");
  Tokenizer ours = train(cases["training"].get<std::string>(), {.vocab_size = 700});
  ASSERT_EQ(ours.merges().size(), peer.merges().size());
  EXPECT_GE(ours.merges().size(), 100u);
  for (size_t r = 0; r < ours.merges().size(); r++) {
    auto &a = ours.merges()[r], &b = peer.merges()[r];
    ASSERT_EQ(ours.token(a.left), peer.token(b.left)) << r;
    ASSERT_EQ(ours.token(a.right), peer.token(b.right)) << r;
  }
}

TEST(TrainBpe, EqualsTheDefinition) {
  Tokenizer bytes = train("", {.vocab_size = 256, .specials = {}});
  for (uint64_t round = 0; round < 12; round++) {
    uint64_t key = rng_key(5, round, "text");
    std::string text;
    uint64_t letters =
        2 + below(key, 0, 3);  // few letters: many ties, and pairs such as aa that overlap themselves
    for (uint64_t i = 1; i < 400; i++)
      text += "abcd \xFF"[below(key, i, 6) ? below(key, 1000 + i, letters) : 4 + i % 2];
    int32_t n = 256 + 10 + int32_t(round) * 10;
    Tokenizer t = train(text, {.vocab_size = n, .specials = {}});
    ASSERT_EQ(pairs_of(t), merges_slowly(text, bytes, n)) << text;
    EXPECT_EQ(t.decode(t.encode(text)), text);
  }
}

TEST(TrainBpe, TiesGoToTheSmallestIds) {
  // "ab", "cd" and "ef" occur twice each, in words that share nothing.
  Tokenizer t = train("ef cd\nab\tef\ncd\tab", {.vocab_size = 259, .specials = {}});
  std::vector<std::string> learned;
  for (const auto& m : t.merges()) learned.emplace_back(t.token(m.result));
  EXPECT_EQ(learned, (std::vector<std::string>{"ab", "cd", "ef"}));
}

TEST(TrainBpe, TheOrderOfTextsDoesNotMatter) {
  std::vector<std::string> texts;
  for (uint64_t i = 0; i < 40; i++) {
    std::string s;
    for (uint64_t k = 0; k < 200; k++) s += "etaoin shrdlu\n"[below(rng_key(6, i, "t"), k, 14)];
    texts.push_back(s);
  }
  std::vector<std::string_view> forth(texts.begin(), texts.end()), back(texts.rbegin(), texts.rend());
  EXPECT_EQ(train_bpe(forth, {.vocab_size = 400}).to_json(), train_bpe(back, {.vocab_size = 400}).to_json());
}

TEST(TrainBpe, CountsTheSameOnAnyThreads) {
  TestFolder folder;
  std::string text, lines;
  for (uint64_t i = 0; i < 4000; i++)
    text += "w" + std::to_string(below(rng_key(7, i, "t"), 0, 90)) + (i % 9 ? " x " : "\nand ");
  for (int i = 0; i < 300; i++) lines += "{\"body\": \"line " + std::to_string(i % 20) + "\"}\n";
  const std::vector<TextSource> sources = {
      {.path = folder.write("a.txt", text), .name = "a", .end = int64_t(text.size())},
      {.path = folder.write("b.txt", "held out"), .name = "b", .end = 8, .held_out = true},
      {.path = folder.write("c.jsonl", lines),
       .name = "c",
       .json_lines = true,
       .end = int64_t(lines.size())}};
  for (SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::llama3, SplitPattern::qwen2}) {
    WordCounts whole(pattern);
    whole.add(text);
    for (int i = 0; i < 300; i++) whole.add("line " + std::to_string(i % 20));
    const std::string want = train_bpe(whole, {.vocab_size = 320}).to_json();
    for (int threads : {1, 3}) {
      DocumentStream stream(sources, Divider(Pipeline::of(pattern)), {.key = "body", .batch_bytes = 700});
      WordCounts counts(pattern);
      int64_t done = 0;
      count_words(stream, threads, counts, [&](int64_t bytes) { done = bytes; });
      EXPECT_EQ(counts.words(), whole.words());
      EXPECT_EQ(train_bpe(counts, {.vocab_size = 320}).to_json(), want) << threads;
      EXPECT_EQ(done, stream.total_bytes());
    }
  }
}

TEST(TrainBpe, MemoryForWordsIsBounded) {
  TestFolder folder;
  std::string text;
  for (uint64_t i = 0; i < 20000; i++)
    text += i % 3 ? "word" + std::to_string(i % 11) + "s " : std::to_string(rng_key(1, i, "n")) + " often ";
  const std::vector<TextSource> sources = {
      {.path = folder.write("a.txt", text), .name = "a", .end = int64_t(text.size())}};
  std::string learned;
  for (int threads : {1, 4}) {
    DocumentStream stream(sources, Divider(Pipeline::of(SplitPattern::gpt2)), {.batch_bytes = 10000});
    WordCounts counts(SplitPattern::gpt2, 100000);
    count_words(stream, threads, counts, {});
    EXPECT_LT(counts.words(), 2000);  // of more than 6,000
    EXPECT_GT(counts.dropped(), 3000);
    const Tokenizer t = train_bpe(counts, {.vocab_size = 290});
    EXPECT_EQ(t.encode(" often").size(), 1u);  // what is frequent stays
    if (threads == 1) learned = t.to_json();
    EXPECT_EQ(t.to_json(), learned);
  }
}

// What is trained for a pattern says so in its file, and reads back.
TEST(TrainBpe, PatternsOfOthers) {
  for (SplitPattern pattern : {SplitPattern::llama3, SplitPattern::qwen2}) {
    WordCounts counts(pattern);
    counts.add("It'S 12345 cafe\u0301 cafe\u0301 12345!\n\n");
    Tokenizer t = train_bpe(counts, {.vocab_size = 262});
    const std::string json = t.to_json();
    Tokenizer back = Tokenizer::parse(std::as_bytes(std::span(json)), "json");
    EXPECT_EQ(back.to_json(), json);
    const std::string text = "cafe\u0301 123456\n\n!\n";
    EXPECT_EQ(back.encode(text), t.encode(text));
    EXPECT_EQ(back.decode(back.encode(text)),
              pattern == SplitPattern::qwen2 ? "caf\u00e9 123456\n\n!\n" : text);
  }
}

TEST(TrainBpe, SizesAndSpecials) {
  Tokenizer t = train("abababab abab", {.vocab_size = 1000});
  EXPECT_LT(t.vocab_size(), 270);  // the text has no more pairs
  EXPECT_EQ(t.end_of_text(), t.vocab_size() - 1);
  Tokenizer many = train("abababab abab", {.vocab_size = 259, .specials = {"<|a|>", "<|b|>"}});
  EXPECT_EQ(many.vocab_size(), 259);
  EXPECT_EQ(many.merges().size(), 1u);
  EXPECT_EQ(many.find_added("<|a|>"), 257);
  EXPECT_EQ(many.find_added("<|b|>"), 258);
  EXPECT_NE(refusal([] { train("", {.vocab_size = 256}); }).find("257"), std::string::npos);
  // A special token is never learned as a word, too.
  Tokenizer word = train("hello hello hello\nhello", {.vocab_size = 1000, .specials = {"hello"}});
  EXPECT_EQ(word.encode("hello"), (std::vector<int32_t>{*word.find_added("hello")}));
  Tokenizer once = train("abc", {.vocab_size = 1000, .specials = {}, .min_count = 1});
  EXPECT_EQ(once.encode("abc").size(), 1u);
  EXPECT_EQ(train("abc", {.vocab_size = 1000}).encode("abc").size(), 3u);
}

TEST(TrainBpe, ReportsProgress) {
  int calls = 0, last = 0;
  std::string text;
  for (int i = 0; i < 3000; i++) text += std::to_string(i) + " ";
  train(text, {.vocab_size = 600, .progress = [&](int done, int total) {
                 EXPECT_GE(done, last);
                 EXPECT_EQ(total, 599);
                 last = done, calls++;
               }});
  EXPECT_EQ(last, 599);
  EXPECT_GE(calls, 3);
}

}  // namespace
}  // namespace trireme
