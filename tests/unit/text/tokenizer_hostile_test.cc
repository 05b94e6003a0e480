// tokenizer.json from outside: what is unsupported is refused by name; what is broken is refused; nothing
// crashes.
#include <gtest/gtest.h>

#include <functional>

#include "base/json.h"
#include "base/rng.h"
#include "folder.h"
#include "source_dir.h"
#include "text/tokenizer.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

Json valid() {
  return Json::parse(read_text(test::source_dir() / "tests/unit/text/golden/tokenizer.json"));
}
// A Split by a pattern of its own, then ByteLevel.
Json split(const char* pattern) {
  Json cut = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({cut, bytes})}};
}
std::string refusal_of(const std::string& file) {
  return refusal([&] { Tokenizer::parse(std::as_bytes(std::span(file)), "x/tokenizer.json"); });
}

TEST(TokenizerFile, WhatIsNotSupportedIsRefusedByName) {
  struct Case {
    std::function<void(Json&)> change;
    const char* named;
  };
  const Case cases[] = {
      {[](Json& f) { f = Json::array(); }, "not a JSON object"},
      {[](Json& f) {
         f["normalizer"] = {{"type", "Lowercase"}};
       },
       "normalizer is {\"type\":\"Lowercase\"}"},
      {[](Json& f) {
         f["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", ""}};
       },
       "only a String"},
      {[](Json& f) {
         f["truncation"] = {{"max_length", 8}};
       },
       "truncation"},
      {[](Json& f) {
         f["padding"] = {{"strategy", "BatchLongest"}};
       },
       "padding"},
      {[](Json& f) {
         f["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       "replacement is null"},
      {[](Json& f) {
         f["pre_tokenizer"] = {{"type", "Whitespace"}};
       },
       "pre_tokenizer is {\"type\":\"Whitespace\"}"},
      {[](Json& f) { f["pre_tokenizer"] = nullptr, f["decoder"] = nullptr; },
       "pre_tokenizer is null: without ByteLevel"},
      {[](Json& f) { f["pre_tokenizer"] = split("(a"); },
       "pre_tokenizer.pattern = \"(a\": a group without an end"},
      {[](Json& f) {
         f["pre_tokenizer"] = split("a");
         f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
       },
       "behavior \"Removed\""},
      {[](Json& f) {
         auto& parts = (f["pre_tokenizer"] = split("a"))["pretokenizers"];
         std::swap(parts[0], parts[1]);
       },
       "after ByteLevel"},
      {[](Json& f) { f["pre_tokenizer"]["add_prefix_space"] = true; }, "add_prefix_space is true"},
      {[](Json& f) { f["pre_tokenizer"].erase("add_prefix_space"); }, "add_prefix_space is null"},
      {[](Json& f) { f["pre_tokenizer"]["use_regex"] = 1; }, "use_regex is 1"},
      {[](Json& f) {
         f["post_processor"] = {{"type", "BertProcessing"}};
       },
       "BertProcessing"},
      {[](Json& f) {
         f["decoder"] = {{"type", "WordPiece"}};
       },
       "decoder"},
      {[](Json& f) { f["model"] = 3; }, "model is 3"},
      {[](Json& f) { f["model"]["type"] = "Unigram"; }, "model.type is \"Unigram\""},
      {[](Json& f) { f["model"]["type"] = "WordPiece"; }, "model.type is \"WordPiece\""},
      {[](Json& f) { f["model"]["dropout"] = 0.1; }, "model.dropout is 0.1"},
      {[](Json& f) { f["model"]["byte_fallback"] = true; }, "model.byte_fallback"},
      {[](Json& f) { f["model"]["unk_token"] = 1; }, "unk_token is 1"},
      {[](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; }, "continuing_subword_prefix"},
      {[](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix"},
      {[](Json& f) { f["model"]["ignore_merges"] = 1; }, "ignore_merges"},
      {[](Json& f) { f["model"]["vocab"] = Json::array(); }, "model.vocab"},
      {[](Json& f) { f["model"]["vocab"] = Json::object(); }, "model.vocab"},
      {[](Json& f) { f["model"]["vocab"]["!"] = -1; }, "token id -1"},
      {[](Json& f) { f["model"]["vocab"]["!"] = 1.5; }, "token id 1.5"},
      {[](Json& f) { f["model"]["vocab"]["!"] = 18446744073709551615ull; }, "token id 18446744073709551615"},
      {[](Json& f) { f["model"]["vocab"]["!"] = 2147483647; }, "token id 2147483647"},
      {[](Json& f) { f["model"]["vocab"]["!"] = 3; }, "two tokens have id 3: "},
      {[](Json& f) { f["model"]["vocab"]["a b"] = 407; }, "not spelled in byte-level"},
      {[](Json& f) { f["model"]["vocab"][""] = 407; }, "is empty"},
      {[](Json& f) { f["model"]["merges"] = 0; }, "model.merges"},
      {[](Json& f) { f["model"]["merges"][5] = "ab"; }, "merge \"ab\" is not two tokens"},
      {[](Json& f) { f["model"]["merges"][5] = {"a"}; }, "is not two tokens"},
      {[](Json& f) {
         f["model"]["merges"][5] = {"a", 1};
       },
       "is not two tokens"},
      {[](Json& f) { f["model"]["merges"][5] = "a zzz"; }, "\"zzz\" is not in model.vocab"},
      {[](Json& f) {
         f["model"]["merges"][5] = {"~", "~"};
       },
       "\"~~\" is not in model.vocab"},
      {[](Json& f) { f["added_tokens"] = 1; }, "added_tokens"},
      {[](Json& f) { f["added_tokens"][0].erase("id"); }, "no id"},
      {[](Json& f) { f["added_tokens"][0]["content"] = ""; }, "empty"},
      {[](Json& f) { f["added_tokens"][1]["id"] = 999; }, "has id 999, but tokenizers gives it id 407"},
      {[](Json& f) { f["added_tokens"][2] = f["added_tokens"][1]; }, "there twice"},
      {[](Json& f) { f["added_tokens"][0]["lstrip"] = 1; }, "lstrip is 1"},
      {[](Json& f) { f["added_tokens"][0]["single_word"] = ""; }, "single_word"},
  };
  EXPECT_EQ(refusal_of(valid().dump()), "");
  for (const Case& c : cases) {
    Json file = valid();
    c.change(file);
    std::string got = refusal_of(file.dump());
    EXPECT_NE(got.find(c.named), std::string::npos) << "wanted " << c.named << ", got: " << got;
    EXPECT_EQ(got.rfind("x/tokenizer.json", 0), 0u) << got;
    EXPECT_LT(got.size(), 500u);
  }
}

TEST(TokenizerFile, NoJson) {
  for (const char* text : {"", "{", "null", "\xFF\xFE", "{\"model\": \"\xC3\"}", "[1, 2"})
    EXPECT_NE(refusal_of(text), "") << text;
  EXPECT_NE(refusal_of(std::string(100000, '[')), "");
  EXPECT_NE(refusal([] { Tokenizer::load("/no/such/tokenizer.json"); }).find("/no/such/tokenizer.json"),
            std::string::npos);
}

// The parse either throws Error, or gives a tokenizer that encodes any text and decodes it exactly.
void survives(const std::string& file, int& loaded) {
  try {
    Tokenizer t = Tokenizer::parse(std::as_bytes(std::span(file)), "mutated");
    const std::string text = "def f(x): return '\xFF' <|endoftext|> <tag>x it's 12\n\n";
    const std::string back = t.decode(t.encode(text));
    if (t.lossless()) {
      EXPECT_EQ(back, text);
    }
    loaded++;
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request) << e.what();
  }
}

TEST(TokenizerFile, MutatedBytesNeverCrash) {
  const std::string file = valid().dump();
  int loaded = 0;
  for (uint64_t round = 0; round < 400; round++) {
    uint64_t key = rng_key(21, round, "bytes");
    std::string bad = file;
    for (uint64_t i = 0; i <= below(key, 0, 3); i++) {
      size_t at = below(key, 10 * i + 1, bad.size());
      switch (below(key, 10 * i + 2, 4)) {
        case 0:
          bad[at] = char(below(key, 10 * i + 3, 256));
          break;
        case 1:
          bad.erase(at, 1 + below(key, 10 * i + 3, 40));
          break;
        case 2:
          bad.insert(at, bad.substr(below(key, 10 * i + 3, bad.size()), 1 + below(key, 10 * i + 4, 20)));
          break;
        case 3:
          bad[at] = "0123456789\"{}[],:-"[below(key, 10 * i + 3, 18)];
          break;
      }
    }
    survives(bad, loaded);
  }
  EXPECT_GT(loaded, 0);  // some harm nothing that matters
  EXPECT_LT(loaded, 400);
}

// A random node, from the root down.
Json& some_node(Json& root, uint64_t key) {
  Json* at = &root;
  for (uint64_t depth = 0; depth < 6 && at->is_structured() && !at->empty() && below(key, depth, 6); depth++)
    at = &*std::next(at->begin(), ptrdiff_t(below(key, 10 + depth, at->size())));
  return *at;
}

TEST(TokenizerFile, MutatedStructureNeverCrashes) {
  const Json file = valid();
  const Json values[] = {nullptr,
                         true,
                         0,
                         -1,
                         1e300,
                         4294967296,
                         "",
                         "a",
                         "<|endoftext|>",
                         "\u0120",
                         Json::array(),
                         Json::object(),
                         {"a", "b"},
                         {{"type", "BPE"}},
                         {{"type", "ByteLevel"}}};
  int loaded = 0;
  for (uint64_t round = 0; round < 400; round++) {
    uint64_t key = rng_key(22, round, "nodes");
    Json bad = file;
    Json& node = some_node(bad, key);
    if (below(key, 50, 3) == 0)
      node = some_node(bad, key + 1);
    else
      node = values[below(key, 51, std::size(values))];
    survives(bad.dump(), loaded);
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 400);
}

}  // namespace
}  // namespace trireme
