// Tokenizers as the well-known models have them, held against ids of the peer library
// (golden/pipelines.json).
#include "text/pipeline.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "goldens.h"
#include "text/encoder.h"

namespace trireme {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

class Pipelines : public testing::TestWithParam<const char*> {
 protected:
  const Json& golden_ = goldens()["pipelines"][GetParam()];
  const Json& texts_ = goldens()["texts"];
  Tokenizer peers_ = golden_tokenizer(GetParam());
  Ids as_text(size_t i) const {
    return golden_["as_text"].value(std::to_string(i), golden_["ids"][i].get<Ids>());
  }
};
INSTANTIATE_TEST_SUITE_P(AsThePeer, Pipelines,
                         testing::Values("llama3", "qwen2", "flags", "digits", "o200k", "llama2", "mistral",
                                         "metaspace", "gemma"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Pipelines, EncodeAndDecode) {
  Encoder encoder(peers_);
  for (size_t i = 0; i < texts_.size(); i++) {
    const std::string text = texts_[i];
    EXPECT_EQ(peers_.encode(text), golden_["ids"][i].get<Ids>()) << i << ": " << text;
    const Ids plain = as_text(i);
    EXPECT_EQ(peers_.encode(text, Specials::as_text), plain) << i << ": " << text;
    // The peer spells the letters of an added token as stand-ins of bytes when it decodes; ours stay what
    // they are.
    if (std::string(GetParam()) != "flags") {
      EXPECT_EQ(peers_.decode(plain), golden_["decoded"].value(std::to_string(i), text)) << i;
    }
    Ids again;
    encoder.encode(text, Specials::as_text, again);
    EXPECT_EQ(again, plain);
  }
}

// With a table of words, which short texts do without.
TEST_P(Pipelines, LongTexts) {
  std::string text;
  Ids want;
  const std::string between = "\nand so on\n";
  for (size_t i = 0; i < texts_.size(); i++) text += texts_[i].get<std::string>() + between;
  std::string thrice = text + text + text;
  Encoder with_table(peers_);
  Ids got;
  with_table.encode(thrice, Specials::as_text, got);
  Encoder fresh(peers_);
  // A table that is full of other words gives the same.
  with_table.encode(thrice, Specials::as_text, want);
  EXPECT_EQ(got, want);
  EXPECT_GT(got.size(), 1000u);
  if (peers_.lossless()) {
    EXPECT_EQ(peers_.decode(got), thrice);
  }
}

TEST_P(Pipelines, WrittenFilesMeanTheSame) {
  const std::string written = peers_.to_json();
  Tokenizer back = parse_tokenizer(written, "written");
  EXPECT_EQ(back.to_json(), written);
  for (size_t i = 0; i < texts_.size(); i++)
    EXPECT_EQ(back.encode(texts_[i].get<std::string>()), peers_.encode(texts_[i].get<std::string>())) << i;
  Json ours = Json::parse(written), theirs = golden_["file"];
  for (auto& m : theirs["model"]["merges"]) m = m[0].get<std::string>() + " " + m[1].get<std::string>();
  EXPECT_EQ(ours, theirs);
}

// Bytes that are no UTF-8 come back wherever the file takes nothing away.
TEST_P(Pipelines, AnyBytesComeBack) {
  if (std::string(GetParam()) == "flags") GTEST_SKIP() << "its added tokens swallow spaces";
  for (uint64_t round = 0; round < 200; round++) {
    uint64_t key = rng_key(5, round, "bytes");
    std::string text;
    for (uint64_t i = 1; i <= below(key, 0, round % 9 ? 40 : 6000); i++)
      text += below(key, 3 * i, 3) ? "a e\n't1. "[below(key, 3 * i + 1, 9)]
                                   : char(0x80 + below(key, 3 * i + 1, 128));
    const Ids ids = peers_.encode(text);
    // NFC only joins valid characters: random continuation bytes seldom make a mark, then the text must be
    // its NFC.
    std::string buffer, want(peers_.pipeline().normalizer.has_prepend()
                                 ? text
                                 : peers_.pipeline().normalizer.apply(text, false, buffer));
    for (size_t at; (at = want.find(kMetaspace)) != std::string::npos;)
      want.replace(at, kMetaspace.size(), " ");
    std::string got = peers_.decode(ids);
    if (!peers_.pipeline().byte_level && got != want) got = " " + got;  // the one that a leading space lost
    ASSERT_EQ(got, want) << testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace trireme
