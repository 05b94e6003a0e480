#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "folder.h"
#include "source_dir.h"
#include "text/encoder.h"
#include "text/split.h"
#include "text/train_bpe.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

fs::path golden(const char* file) {
  return test::source_dir() / "tests/unit/text/golden" / file;
}
const Json& cases() {
  static const Json all = Json::parse(read_text(golden("cases.json")));
  return all;
}
Tokenizer parse(const std::string& json) {
  return Tokenizer::parse(std::as_bytes(std::span(json)), "test");
}

using Ids = std::vector<int32_t>;

// Merges as the papers tell it: again and again the adjacent pair of lowest rank, the leftmost of equals.
Ids merged_slowly(const Tokenizer& t, std::string_view text) {
  Ids out;
  split_words(text, [&](std::string_view word) {
    std::vector<std::string> parts;
    for (char c : word) parts.emplace_back(1, c);
    for (;;) {
      size_t best = parts.size(), best_rank = t.merges().size();
      for (size_t i = 0; i + 1 < parts.size(); i++)
        for (size_t r = 0; r < best_rank; r++)
          if (t.token(t.merges()[r].left) == parts[i] && t.token(t.merges()[r].right) == parts[i + 1])
            best = i, best_rank = r;
      if (best == parts.size()) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + ptrdiff_t(best) + 1);
    }
    for (const std::string& p : parts)
      for (int32_t id = 0; id < t.vocab_size(); id++)
        if (t.token(id) == p) {
          out.push_back(id);
          break;
        }
  });
  return out;
}

TEST(Tokenizer, EncodesAsThePeerDoes) {
  Tokenizer t = Tokenizer::load(golden("tokenizer.json"));
  int n = 0;
  for (const Json& c : cases()["cases"]) {
    std::string text = c["text"];
    Ids ids = c["ids"], as_text = c.value("as_text", ids);
    EXPECT_EQ(t.encode(text), ids) << text;
    EXPECT_EQ(t.encode(text, Specials::as_text), as_text) << text;
    EXPECT_EQ(t.decode(ids), text);
    EXPECT_EQ(t.decode(as_text), text);
    n++;
  }
  EXPECT_GE(n, 150);
}

TEST(Tokenizer, IgnoresMergesAsThePeerDoes) {
  Json file = Json::parse(read_text(golden("tokenizer.json")));
  auto& merges = file["model"]["merges"];
  for (int i = 0; i < cases()["dropped"]; i++) merges.erase(merges.size() - 1);
  file["model"]["ignore_merges"] = true;
  Tokenizer t = parse(file.dump());
  for (const Json& c : cases()["cases"]) {
    std::string text = c["text"];
    Ids ids = c.value("ignore_merges", c["ids"].get<Ids>());
    EXPECT_EQ(t.encode(text), ids) << text;
    EXPECT_EQ(parse(t.to_json()).encode(text), ids) << text;
  }
}

TEST(Tokenizer, SavedAndLoadedIsTheSame) {
  TestFolder folder;
  Tokenizer t = Tokenizer::load(golden("tokenizer.json"));
  t.save(folder.path() / "tokenizer.json");
  Tokenizer back = Tokenizer::load(folder.path() / "tokenizer.json");
  EXPECT_EQ(back.to_json(), t.to_json());
  ASSERT_EQ(back.vocab_size(), t.vocab_size());
  for (int32_t id = 0; id < t.vocab_size(); id++) EXPECT_EQ(back.token(id), t.token(id));
  for (const Json& c : cases()["cases"])
    EXPECT_EQ(back.encode(c["text"].get<std::string>()), c["ids"].get<Ids>());
  // The fields of the file are the peer's.
  Json ours = Json::parse(t.to_json()), theirs = Json::parse(read_text(golden("tokenizer.json")));
  for (auto& m : theirs["model"]["merges"]) m = m[0].get<std::string>() + " " + m[1].get<std::string>();
  theirs["decoder"] = ours["decoder"];  // its flags mean nothing when decoding
  EXPECT_EQ(ours, theirs);
}

// Which token each id is, however the file spells it and whatever else it says.
TEST(Tokenizer, FingerprintIsOfTheVocabulary) {
  Tokenizer::Parts parts;
  for (int b = 0; b < 256; b++) parts.tokens.push_back(std::string(1, char(b)));
  parts.tokens.push_back("ab");
  parts.merges.push_back({'a', 'b', 256});
  const uint64_t one = Tokenizer(parts).fingerprint();
  const Tokenizer t(parts);
  const std::string json = t.to_json();
  EXPECT_EQ(Tokenizer::parse(std::as_bytes(std::span(json)), "again").fingerprint(), one);
  Tokenizer::Parts other = parts;
  other.ignore_merges = true;
  EXPECT_EQ(Tokenizer(other).fingerprint(), one);
  other.tokens[256] = "ac", other.merges[0] = {'a', 'c', 256};
  EXPECT_NE(Tokenizer(other).fingerprint(), one);
  other = parts;
  other.added.push_back({.content = "<|endoftext|>", .id = 257});
  EXPECT_NE(Tokenizer(other).fingerprint(), one);
  // The same bytes one after another, cut otherwise, are other tokens.
  Tokenizer::Parts left = parts, right = parts;
  left.tokens[256] = "abc", left.tokens.push_back("def"), left.merges.clear();
  right.tokens[256] = "abcd", right.tokens.push_back("ef"), right.merges.clear();
  EXPECT_NE(Tokenizer(left).fingerprint(), Tokenizer(right).fingerprint());
}

TEST(Tokenizer, AnyBytesComeBack) {
  Tokenizer t = Tokenizer::load(golden("tokenizer.json"));
  Encoder encoder(t);
  for (uint64_t round = 0; round < 300; round++) {
    uint64_t key = rng_key(3, round, "bytes");
    std::string text;
    uint64_t length = below(key, 0, round % 10 ? 50 : 9000), range = round % 2 ? 256 : 8;
    for (uint64_t i = 1; i <= length; i++) text += char(uint8_t(below(key, i, range) * (256 / range)));
    Ids ids;
    encoder.encode(text, Specials::recognise, ids);
    ASSERT_EQ(t.decode(ids), text);
    ASSERT_EQ(t.encode(text), ids);  // without what the encoder remembers
  }
}

TEST(Tokenizer, ShortAndLongWordsMergeAsDefined) {
  Tokenizer t = Tokenizer::load(golden("tokenizer.json"));
  const std::string_view pieces[] = {"a",  "e",  "n",   "t",        "return",      "left",
                                     "al", "oo", "the", "\xC3\xA9", "\xE6\xAB\x82"};
  for (uint64_t round = 0; round < 60; round++) {
    uint64_t key = rng_key(4, round, "words");
    std::string text;
    uint64_t length =
        1 + below(key, 0, 100);  // letters only: one word, on both sides of the border of 64 bytes
    for (uint64_t i = 1; i <= length; i++) text += pieces[below(key, i, round % 3 ? std::size(pieces) : 2)];
    ASSERT_EQ(t.encode(text), merged_slowly(t, text)) << text;
  }
}

// Merges in any order, several to one token: a pair that a merge makes may rank before it, and stand
// anywhere.
TEST(Tokenizer, LongWordsMergeInWhateverOrderMergesRank) {
  for (uint64_t round = 0; round < 24; round++) {
    const uint64_t key = rng_key(5, round, "ranks");
    Tokenizer::Parts parts;
    std::map<std::string, int32_t> ids;
    auto add = [&](const std::string& token) {
      ids[token] = int32_t(parts.tokens.size());
      parts.tokens.push_back(token);
    };
    for (int b = 0; b < 256; b++) add(std::string(1, char(b)));
    std::vector<std::string> words = {"a", "b"};
    for (size_t i = 0; words[i].size() < 4; i++)
      for (char c : {'a', 'b'}) words.push_back(words[i] + c), add(words.back());
    std::vector<std::pair<uint64_t, Tokenizer::Merge>> all;  // drawn, then sorted by what was drawn
    for (auto& [token, id] : ids)
      for (size_t cut = 1; cut < token.size(); cut++) {
        const uint64_t draw = below(key, all.size(), uint64_t(1) << 40);
        if (draw % 4 > 0) all.push_back({draw, {ids[token.substr(0, cut)], ids[token.substr(cut)], id}});
      }
    std::sort(all.begin(), all.end(), [](auto& x, auto& y) { return x.first < y.first; });
    for (auto& [draw, merge] : all) parts.merges.push_back(merge);
    const Tokenizer t(parts);
    std::string text;
    const uint64_t length = 65 + below(key, 1000, 60);
    for (uint64_t i = 0; i < length; i++) text += round % 4 && below(key, 2000 + i, 4) == 0 ? 'b' : 'a';
    ASSERT_EQ(t.encode(text), merged_slowly(t, text)) << round << ": " << text;
  }
}

TEST(Tokenizer, AMegabyteOfOneLetterIsNoTrap) {
  Tokenizer t = Tokenizer::load(golden("tokenizer.json"));
  for (const char* letter : {"a", " ", "=", "\xC3\xA9"}) {
    std::string text;
    while (text.size() < 1000000) text += letter;
    EXPECT_EQ(t.decode(t.encode(text)), text);
  }
}

TEST(Tokenizer, SpecialTokens) {
  const std::string_view text = "say <|endoftext|> twice";
  Tokenizer t = train_bpe(std::span(&text, 1), {.vocab_size = 300});
  int32_t end = t.end_of_text();
  EXPECT_EQ(end, t.vocab_size() - 1);
  EXPECT_EQ(t.find_added("<|endoftext|>"), end);
  EXPECT_EQ(t.find_added("<|other|>"), std::nullopt);
  EXPECT_EQ(t.encode("<|endoftext|><|endoftext|>"), (Ids{end, end}));
  Ids as_text = t.encode(text, Specials::as_text);
  EXPECT_EQ(std::count(as_text.begin(), as_text.end(), end), 0);
  EXPECT_EQ(t.decode(as_text), text);
  Tokenizer none = train_bpe(std::span(&text, 1), {.vocab_size = 300, .specials = {}});
  EXPECT_NE(refusal([&] { none.end_of_text(); }).find("<|endoftext|>"), std::string::npos);
}

TEST(Tokenizer, IdsThatAreNoTokensAreRefused) {
  Tokenizer t = Tokenizer::load(golden("tokenizer.json"));
  for (int32_t id : {-1, t.vocab_size(), INT32_MAX, INT32_MIN})
    EXPECT_NE(refusal([&] { t.decode(std::span(&id, 1)); }).find(std::to_string(id)), std::string::npos);
}

TEST(Tokenizer, ConfigNamesTheEndOfText) {
  Tokenizer t = Tokenizer::load(golden("tokenizer.json"));
  Json config = Json::parse(t.config_json(256));
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_EQ(config["model_max_length"], 256);
  EXPECT_EQ(config["clean_up_tokenization_spaces"], false);
}

}  // namespace
}  // namespace trireme
