// Vocabularies that lack tokens: for some bytes, or for some ids. Expected ids are those of tokenizers 0.23.3
// for the same files.
#include <gtest/gtest.h>

#include "byte_level.h"
#include "folder.h"
#include "goldens.h"
#include "text/document_stream.h"
#include "text/encode_documents.h"

namespace trireme {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Tokenizer vocabulary_of(const Json& file) {
  return parse_tokenizer(file.dump(), "t.json");
}
std::string file_refusal(const Json& file) {
  return refusal([&] { vocabulary_of(file); });
}

TEST(Vocabulary, MayLackBytes) {
  std::set<int> never = {0xC0, 0xC1};
  for (int b = 0xF5; b < 0x100; b++) never.insert(b);
  const Tokenizer t = vocabulary_of(byte_level_file({}, never));
  EXPECT_EQ(t.encode("a"), Ids{64});
  EXPECT_EQ(t.encode("<|endoftext|>"), Ids{243});
  EXPECT_TRUE(t.lossless());
  EXPECT_EQ(refusal([&] { t.encode("ok \xC1"); }), "the vocabulary has no token for the byte 0xC1");
  // A word of one byte, and a long word, take other ways.
  EXPECT_NE(refusal([&] { t.encode("\xFF"); }), "");
  EXPECT_NE(refusal([&] { t.encode(std::string(100, 'a') + "\xFF"); }), "");
}

TEST(Vocabulary, AnUnknownTokenStandsForMissingBytes) {
  Json file = byte_level_file({}, {0, 1});
  file["model"]["unk_token"] = "z";
  const Tokenizer apart = vocabulary_of(file);
  EXPECT_EQ(apart.encode(std::string_view("a\0\1b", 4)), (Ids{64, 89, 89, 65}));
  EXPECT_FALSE(apart.lossless());
  EXPECT_TRUE(vocabulary_of(byte_level_file()).lossless());
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(vocabulary_of(file).encode(std::string_view("a\0\1b\0", 5)), (Ids{64, 89, 65, 89}));
  file["model"]["unk_token"] = "absent";
  EXPECT_NE(refusal([&] { vocabulary_of(file).encode(std::string_view("\0", 1)); }).find("0x00"),
            std::string::npos);
}

TEST(Vocabulary, TheFileOfAMissingByteIsNamed) {
  TestFolder folder;
  const Tokenizer t = vocabulary_of(byte_level_file({}, {4}));
  const fs::path lines = folder.write("d.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\\u0004\"}\n");
  DocumentStream stream(
      {{.path = lines, .name = "d", .json_lines = true, .end = int64_t(fs::file_size(lines))}}, Divider(t),
      {});
  Ids ids;
  auto take = [&](const DocumentPart&, std::span<const int32_t> more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  const std::string why = refusal([&] { encode_documents(t, stream, take, {}); });
  EXPECT_NE(why.find("d.jsonl, line 2: the vocabulary has no token for the byte 0x04"), std::string::npos)
      << why;
}

TEST(Vocabulary, IdsMayHaveGaps) {
  Json file = byte_level_file();
  file["model"]["vocab"]["z"] = 300;
  file["model"]["vocab"]["<|endoftext|>"] = file["added_tokens"][0]["id"] = 301;
  const Tokenizer t = vocabulary_of(file);
  EXPECT_EQ(t.encode("az<|endoftext|>"), (Ids{64, 300, 301}));
  EXPECT_EQ(t.vocab_size(), 302);
  EXPECT_EQ(t.token(89), "");
  EXPECT_EQ(t.decode(Ids{64, 89, 299, 300}), "az");
  const std::string written = t.to_json();
  EXPECT_EQ(Json::parse(written)["model"]["vocab"], file["model"]["vocab"]);
  EXPECT_EQ(parse_tokenizer(written, "again").to_json(), written);
  // Not the vocabulary without the gap.
  EXPECT_NE(t.fingerprint(), vocabulary_of(byte_level_file()).fingerprint());
}

TEST(Vocabulary, AddedTokensHaveTheIdsOfTheLibrary) {
  Json file = byte_level_file({{"h", "i"}});
  auto add = [&](int id, const char* content) {
    file["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", false}});
  };
  add(258, "hi");  // model.vocab has it with id 256
  EXPECT_EQ(vocabulary_of(file).encode("hi<|endoftext|>"), (Ids{256, 257}));
  add(258, "new");
  EXPECT_EQ(vocabulary_of(file).encode("new"), Ids{258});
  add(266, "late");
  const std::string why = file_refusal(file);
  EXPECT_NE(why.find("\"late\" has id 266, but tokenizers gives it id 259"), std::string::npos) << why;
  file["added_tokens"][3] = file["added_tokens"][2];
  file["added_tokens"][3]["id"] = 259;
  EXPECT_NE(file_refusal(file).find("\"new\" is there twice, with ids 258 and 259"), std::string::npos);
}

// An added token may be a byte's stand-in, or a whole word.
TEST(Vocabulary, AddedTokensOfTheModelAreStillItsTokens) {
  Json file = byte_level_file();
  file["added_tokens"].push_back({{"id", 64}, {"content", "a"}, {"special", true}});
  EXPECT_EQ(vocabulary_of(file).encode("ab", Specials::as_text), (Ids{64, 65}));
  EXPECT_TRUE(vocabulary_of(file).lossless());
  const std::string space = spell_bytes(" ");
  file["added_tokens"].push_back(
      {{"id", file["model"]["vocab"][space]}, {"content", space}, {"special", true}});
  const Tokenizer t = vocabulary_of(file);
  EXPECT_EQ(t.encode(" ", Specials::as_text), Ids{file["model"]["vocab"][space].get<int32_t>()});
  EXPECT_FALSE(t.lossless());
}

// The token that ends a document is the one that the tokenizer's folder names.
TEST(Vocabulary, TheFolderNamesTheEndOfAText) {
  Json file = byte_level_file();
  auto add = [&](const char* content) {
    const int id = int(file["model"]["vocab"].size() + file["added_tokens"].size());
    file["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
  };
  add("<\uFF5Cend\u2581of\u2581sentence\uFF5C>");
  add("<|im_end|>");
  TestFolder folder;
  const fs::path path = folder.write("tokenizer.json", file.dump());
  auto end = [&] { return Tokenizer::load(path).find_end_of_text(); };
  EXPECT_EQ(end(), 256);
  folder.write("special_tokens_map.json", R"({"eos_token": {"content": "<|im_end|>", "lstrip": false}})");
  EXPECT_EQ(end(), 258);
  folder.write("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(end(), 258);
  folder.write("tokenizer_config.json", "{\"eos_token\": \"<\uFF5Cend\u2581of\u2581sentence\uFF5C>\"}");
  EXPECT_EQ(end(), 257);
  folder.write("tokenizer_config.json", R"({"eos_token": "a"})");
  EXPECT_EQ(end(), 64);
  folder.write("tokenizer_config.json", R"({"eos_token": "<absent>"})");
  EXPECT_EQ(end(), std::nullopt);
  EXPECT_EQ(Tokenizer::load(path).named_end_of_text(), "<absent>");
  folder.write("tokenizer_config.json", "[");
  EXPECT_NE(refusal(end).find("tokenizer_config.json is not a JSON object"), std::string::npos);
}

// Lines that cannot be read or encoded are left out, and counted.
TEST(Vocabulary, BadLinesMayBeSkipped) {
  TestFolder folder;
  const Tokenizer t = vocabulary_of(byte_level_file({}, {4}));
  const fs::path lines = folder.write(
      "d.jsonl", "{\"text\":\"a\"}\n{\"text\":1}\n{\"text\":\"b\\u0004\"}\nx\n{\"text\":\"c\"}\n");
  DocumentStream stream(
      {{.path = lines, .name = "d", .json_lines = true, .end = int64_t(fs::file_size(lines))}}, Divider(t),
      {.skip_bad_lines = true});
  Ids ids;
  auto take = [&](const DocumentPart&, std::span<const int32_t> more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  const EncodeTotals totals = encode_documents(t, stream, take, {.end_of_text = 255});
  EXPECT_EQ(ids, (Ids{64, 255, 66, 255}));
  EXPECT_EQ(totals.documents, 2);
  EXPECT_EQ(totals.skipped, 3);
  EXPECT_NE(totals.first_skipped.find("d.jsonl, line 2: \"text\" is not a string"), std::string::npos)
      << totals.first_skipped;
}

}  // namespace
}  // namespace trireme
