#include "text/encode_documents.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/rng.h"
#include "folder.h"
#include "goldens.h"
#include "text/train_bpe.h"

namespace trireme {
namespace {

using Ids = std::vector<int32_t>;

std::vector<std::string> documents(int n) {
  std::vector<std::string> out;
  for (int i = 0; i < n; i++) {
    uint64_t key = rng_key(8, uint64_t(i), "document");
    std::string s = i % 5 ? "<|endoftext|>" : "q";
    for (uint64_t k = 0; k < below(key, 0, i % 7 ? 300 : 20000); k++)
      s += "the quick brown fox\n"[below(key, k + 1, 20)];
    out.push_back(s);
  }
  return out;
}

// Every third document is a text of its own, the others are lines of JSON, some lines apart.
std::vector<TextSource> write(const TestFolder& folder, const std::vector<std::string>& texts) {
  std::vector<TextSource> sources;
  std::string lines;
  auto add = [&](const std::string& name, const std::string& bytes, bool json) {
    fs::path path = folder.write(name, bytes);
    sources.push_back({.path = path, .name = name, .json_lines = json, .end = int64_t(bytes.size())});
  };
  for (size_t i = 0; i < texts.size(); i++) {
    if (i % 3 == 0) {
      if (!lines.empty()) add(std::to_string(i) + ".jsonl", lines, true);
      lines.clear();
      add(std::to_string(i) + ".txt", texts[i], false);
    } else {
      lines += nlohmann::json{{"text", texts[i]}, {"n", i}}.dump() + (i % 2 ? "\n\n" : "\r\n");
    }
  }
  if (!lines.empty()) add("last.jsonl", lines.substr(0, lines.find_last_not_of("\r\n") + 1), true);
  return sources;
}

// Documents' ids, put together from their parts.
std::vector<Ids> encoded(const Tokenizer& t, const std::vector<TextSource>& sources, size_t batch,
                         int threads, EncodeTotals* totals = nullptr) {
  DocumentStream stream(sources, Divider(t), {.batch_bytes = batch});
  std::vector<Ids> out;
  bool open = false;
  EncodeOptions options{.threads = threads, .end_of_text = t.find_end_of_text().value_or(-1)};
  int64_t bytes = 0;
  options.progress = [&](int64_t now, int64_t) {
    EXPECT_GE(now, bytes);
    bytes = now;
  };
  EncodeTotals sum = encode_documents(
      t, stream,
      [&](const DocumentPart& part, std::span<const int32_t> ids) {
        EXPECT_NE(part.first, open);
        if (part.first) out.emplace_back();
        open = !part.last;
        out.back().insert(out.back().end(), ids.begin(), ids.end());
      },
      options);
  EXPECT_FALSE(open);
  EXPECT_EQ(bytes, stream.total_bytes());
  if (totals) *totals = sum;
  return out;
}

TEST(EncodeDocuments, TheSameInOrderOnAnyThreadsInAnyBatches) {
  auto texts = documents(97);
  TestFolder folder;
  const auto sources = write(folder, texts);
  std::vector<std::string_view> views(texts.begin(), texts.end());
  const Tokenizer t = train_bpe(views, {.vocab_size = 400});
  std::vector<Ids> want;
  int64_t tokens = 0;
  for (const std::string& text : texts) {
    want.push_back(t.encode(text, Specials::as_text));
    want.back().push_back(t.end_of_text());
    tokens += int64_t(want.back().size());
  }
  for (size_t batch : {size_t(64), size_t(1000), size_t(1) << 20})
    for (int threads : {1, 2, 3, 8}) {
      EncodeTotals totals;
      ASSERT_EQ(encoded(t, sources, batch, threads, &totals), want)
          << batch << " bytes, " << threads << " threads";
      EXPECT_EQ(totals.documents, 97);
      EXPECT_EQ(totals.tokens, tokens);
    }
}

// A document that is divided has the ids of the whole, whatever the tokenizer; where it cannot be divided it
// is read whole.
TEST(EncodeDocuments, DividedOrWhole) {
  std::string text;
  for (int round = 0; round < 3; round++)
    for (const auto& piece : goldens()["texts"]) text += piece.get<std::string>() + "\nand so on ";
  TestFolder folder;
  fs::path path = folder.write("long.txt", text);
  const std::vector<TextSource> one = {{.path = path, .name = "long.txt", .end = int64_t(text.size())}};
  for (const char* name : {"llama3", "qwen2", "flags", "o200k", "llama2", "mistral", "gemma"}) {
    const Tokenizer t = golden_tokenizer(name);
    Ids want = t.encode(text, Specials::as_text);
    if (auto end = t.find_end_of_text()) want.push_back(*end);
    ASSERT_EQ(encoded(t, one, 500, 2), std::vector<Ids>{want}) << name;
    DocumentStream stream(one, Divider(t), {.batch_bytes = 500});
    DocumentBatch batch;
    int batches = 0;
    while (stream.next(batch)) {
      batches++;
      EXPECT_LT(batch.bytes.size(), Divider(t).possible() ? 4000u : 1000000u) << name;
    }
    EXPECT_EQ(batches > 10, Divider(t).possible()) << name;
  }
}

TEST(EncodeDocuments, NoDocumentsAndHeldOutOnes) {
  TestFolder folder;
  const Tokenizer t = golden_tokenizer("qwen2");
  for (int threads : {1, 4}) EXPECT_TRUE(encoded(t, {}, 100, threads).empty());
  std::string lines;
  for (int i = 0; i < 1000; i++) lines += "{\"text\": \"x\"}\n";
  TextSource source{.path = folder.write("a.jsonl", lines),
                    .name = "a.jsonl",
                    .json_lines = true,
                    .end = int64_t(lines.size())};
  std::vector<int64_t> held[2];
  for (size_t batch : {size_t(100), size_t(5000)}) {
    DocumentStream stream({source}, Divider(t), {.hold_out = 0.1, .batch_bytes = batch});
    DocumentBatch b;
    while (stream.next(b))
      for (const DocumentPart& p : b.parts)
        if (p.held_out) held[batch > 100].push_back(p.line);
  }
  EXPECT_EQ(held[0], held[1]);
  EXPECT_GT(held[0].size(), 60u);
  EXPECT_LT(held[0].size(), 140u);
}

TEST(EncodeDocuments, TheFirstErrorComesOut) {
  TestFolder folder;
  const Tokenizer t = golden_tokenizer("qwen2");
  std::string lines;
  for (int i = 1; i <= 60; i++) lines += i >= 20 && i % 2 == 0 ? "{\"text\": 1}\n" : "{\"text\": \"line\"}\n";
  const std::vector<TextSource> sources = {{.path = folder.write("a.jsonl", lines),
                                            .name = "a",
                                            .json_lines = true,
                                            .end = int64_t(lines.size())}};
  for (int threads : {1, 3}) {
    int64_t taken = 0;
    DocumentStream stream(sources, Divider(t), {.batch_bytes = 17});  // a line each
    std::string why = refusal([&] {
      encode_documents(t, stream, [&](const DocumentPart&, std::span<const int32_t>) { taken++; },
                       {.threads = threads});
    });
    EXPECT_NE(why.find("a.jsonl, line 20: \"text\" is not a string"), std::string::npos) << why;
    EXPECT_EQ(taken, 19);
    DocumentStream again(sources, Divider(t), {.batch_bytes = 17});
    why = refusal([&] {
      encode_documents(t, again,
                       [&](const DocumentPart& part, std::span<const int32_t>) {
                         if (part.line == 7) bad_request("no room for document {}", part.line);
                       },
                       {.threads = threads});
    });
    EXPECT_EQ(why, "no room for document 7");
  }
}

TEST(DocumentStream, WhatCannotBeReadOrDivided) {
  TestFolder folder;
  const Tokenizer t = golden_tokenizer("qwen2");
  auto why = [&](TextSource source, size_t longest) {
    return refusal([&] {
      DocumentStream stream({source}, Divider(t), {.batch_bytes = 64, .longest_bytes = longest});
      for (DocumentBatch b; stream.next(b);) continue;
    });
  };
  fs::path dots = folder.write("dots.txt", std::string(1000, '.'));
  EXPECT_EQ(why({.path = dots, .end = 1000}, 1000), "");
  EXPECT_NE(
      why({.path = dots, .end = 1000}, 500).find("dots.txt: 512 bytes from byte 0 on cannot be divided"),
      std::string::npos);
  EXPECT_NE(
      why({.path = dots, .json_lines = true, .end = 1000}, 500).find("dots.txt, line 1: longer than 500"),
      std::string::npos);
  EXPECT_NE(why({.path = dots, .end = 2000}, 4000).find("dots.txt became shorter"), std::string::npos);
  EXPECT_NE(why({.path = folder.path() / "none", .end = 1}, 4000).find("none: No such file"),
            std::string::npos);
}

// A failing disk is not a wrong request. Address 0 of a process cannot be read: EIO.
TEST(DocumentStream, AFileThatCannotBeReadIsAFaultOfTheEnvironment) {
  const Tokenizer t = golden_tokenizer("qwen2");
  DocumentStream stream({{.path = "/proc/self/mem", .end = 8}}, Divider(t), {});
  try {
    DocumentBatch b;
    stream.next(b);
    ADD_FAILURE() << "was read";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::environment) << e.what();
    EXPECT_NE(std::string(e.what()).find("/proc/self/mem"), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme
