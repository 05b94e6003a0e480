#include "text/divide.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "goldens.h"
#include "text/encoder.h"

namespace trireme {
namespace {

using Ids = std::vector<int32_t>;

Ids encode(const Tokenizer& t, std::string_view text, Specials specials, Place place) {
  Ids ids;
  Encoder(t).encode(text, specials, ids, place);
  return ids;
}

// Text in which places to divide at are frequent, and everything that makes them wrong.
std::string tangled(uint64_t key) {
  const std::string_view pieces[] = {"a",      "ship",   "oar",           " ",        " ",      "\n",
                                     "\n\n",   "\r\n",   "x y",           ".",        "'s",     "12",
                                     "\u00e9", "\u0301", "\u6f22",        "e\u0301!", "<mask>", "</eat>",
                                     "[both]", "<tag>",  "<|endoftext|>", "\xFF",     "\u2581", "<s>"};
  std::string text;
  for (uint64_t i = 1; i <= 40 + below(key, 0, 60); i++) text += pieces[below(key, i, std::size(pieces))];
  return text;
}

class Divided : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Anywhere, Divided,
                         testing::Values("llama3", "qwen2", "flags", "digits", "llama2", "mistral",
                                         "metaspace", "gemma"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Divided, PartsHaveTheIdsOfTheWhole) {
  const Tokenizer t = golden_tokenizer(GetParam());
  const Divider divider(t);
  if (std::string(GetParam()) == "flags") {  // a token of its normalized text has flags
    EXPECT_FALSE(divider.possible());
    return;
  }
  ASSERT_TRUE(divider.possible());
  int divided = 0;
  for (uint64_t round = 0; round < 400; round++) {
    const std::string text = tangled(rng_key(31, round, "divide"));
    size_t end = text.size();
    for (size_t p; (p = divider.last(std::string_view(text).substr(0, end))) > 0; end = p) {
      divided++;
      for (Specials s : {Specials::recognise, Specials::as_text}) {
        Ids parts = encode(t, text.substr(0, p), s, Place::begins);
        Ids right = encode(t, text.substr(p), s, Place::continues);
        parts.insert(parts.end(), right.begin(), right.end());
        ASSERT_EQ(parts, encode(t, text, s, Place::begins)) << p << " of " << testing::PrintToString(text);
      }
    }
  }
  EXPECT_GT(divided, 500);
}

// The same with added tokens that begin, end and lie at every kind of place, found in the text as it is.
TEST(Divide, KeepsClearOfAddedTokens) {
  auto file = goldens()["pipelines"]["qwen2"]["file"];
  int id = int(file["model"]["vocab"].size()) + int(file["added_tokens"].size());
  for (const std::string content : {"x y", " ship", "oar ", "y\n", "\nx", "a", "ship"}) {
    auto token = file["added_tokens"][0];
    const auto& vocab = file["model"]["vocab"];
    token["content"] = content;
    token["id"] = vocab.contains(content) ? vocab[content].get<int>() : id++;
    token["special"] = false;
    token["lstrip"] = content[0] == 'a', token["rstrip"] = content[0] == 's';
    token["single_word"] = content[0] == ' ';
    file["added_tokens"].push_back(token);
  }
  const Tokenizer t = parse_tokenizer(file.dump(), "tokens");
  const Divider divider(t);
  int divided = 0;
  for (uint64_t round = 0; round < 3000; round++) {
    std::string text;
    uint64_t key = rng_key(32, round, "tokens");
    const std::string_view pieces[] = {"x", " y", "b", " ", "\n", "oar", "ship", "a", " c", "q\nz"};
    for (uint64_t i = 1; i <= 30; i++) text += pieces[below(key, i, std::size(pieces))];
    size_t p = divider.last(text);
    if (p == 0) continue;
    divided++;
    Ids parts = encode(t, text.substr(0, p), Specials::as_text, Place::begins);
    Ids right = encode(t, text.substr(p), Specials::as_text, Place::continues);
    parts.insert(parts.end(), right.begin(), right.end());
    ASSERT_EQ(parts, encode(t, text, Specials::as_text, Place::begins)) << p << testing::PrintToString(text);
  }
  EXPECT_GT(divided, 300);
}

TEST(Divide, NotWithPatternsOfOthers) {
  EXPECT_FALSE(Divider(golden_tokenizer("o200k")).possible());
  EXPECT_EQ(Divider(golden_tokenizer("o200k")).last(std::string(100, ' ') + "a b c d e f"), 0u);
  Divider gpt2(Pipeline::of(SplitPattern::gpt2));
  EXPECT_EQ(gpt2.last(""), 0u);
  EXPECT_EQ(gpt2.last("ab cd ef"), 2u);
  EXPECT_EQ(gpt2.last("ab.\ncd1"), 0u);  // too near the end: a character may go on there
  EXPECT_EQ(gpt2.last("ab.\ncd1...."), 4u);
  EXPECT_EQ(gpt2.last("ab.\n\ncd1...."), 0u);
}

}  // namespace
}  // namespace trireme
