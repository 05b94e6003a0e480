#include "text/encode_documents.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/rng.h"
#include "folder.h"
#include "text/train_bpe.h"

namespace trireme {
namespace {

std::vector<std::string> documents(int n) {
  std::vector<std::string> out;
  for (int i = 0; i < n; i++) {
    uint64_t key = rng_key(8, uint64_t(i), "document");
    std::string s = i % 5 ? "<|endoftext|>" : "";
    for (uint64_t k = 0; k < below(key, 0, i % 7 ? 300 : 20000); k++)
      s += "the quick brown fox\n"[below(key, k + 1, 20)];
    out.push_back(s);
  }
  out[size_t(n) / 2].clear();
  return out;
}

Tokenizer tokenizer_for(const std::vector<std::string>& texts) {
  std::vector<std::string_view> views(texts.begin(), texts.end());
  return train_bpe(views, {.vocab_size = 400});
}

TEST(EncodeDocuments, TheSameInOrderOnAnyThreads) {
  auto texts = documents(97);
  Tokenizer t = tokenizer_for(texts);
  for (int threads : {1, 2, 3, 8}) {
    int64_t next = 0, tokens = 0, bytes = 0, progress = 0;
    EncodeOptions options{.threads = threads};
    options.progress = [&](int64_t docs, int64_t, int64_t) { EXPECT_EQ(docs, ++progress); };
    EncodeTotals totals = encode_documents(
        t, int64_t(texts.size()), [&](int64_t i) { return texts[size_t(i)]; },
        [&](int64_t i, std::span<const int32_t> ids) {
          ASSERT_EQ(i, next++);
          std::vector<int32_t> want = t.encode(texts[size_t(i)], Specials::as_text);
          want.push_back(t.end_of_text());
          ASSERT_EQ(std::vector<int32_t>(ids.begin(), ids.end()), want);
          tokens += int64_t(ids.size()), bytes += int64_t(texts[size_t(i)].size());
        },
        options);
    EXPECT_EQ(next, 97);
    EXPECT_EQ(progress, 97);
    EXPECT_EQ(totals.documents, 97);
    EXPECT_EQ(totals.tokens, tokens);
    EXPECT_EQ(totals.bytes, bytes);
  }
}

TEST(EncodeDocuments, OptionsAndNoDocuments) {
  auto texts = documents(3);
  Tokenizer t = tokenizer_for(texts);
  auto read = [](int64_t) { return std::string("<|endoftext|>"); };
  std::vector<int32_t> got;
  auto take = [&](int64_t, std::span<const int32_t> ids) { got.assign(ids.begin(), ids.end()); };
  encode_documents(t, 1, read, take, {.end_of_text = false, .specials = Specials::recognise});
  EXPECT_EQ(got, (std::vector<int32_t>{t.end_of_text()}));
  for (int threads : {1, 4}) EXPECT_EQ(encode_documents(t, 0, read, take, {.threads = threads}).documents, 0);
}

TEST(EncodeDocuments, TheFirstErrorComesOut) {
  auto texts = documents(60);
  Tokenizer t = tokenizer_for(texts);
  for (int threads : {1, 3}) {
    int64_t taken = 0;
    std::string why = refusal([&] {
      encode_documents(
          t, 60,
          [&](int64_t i) {
            if (i >= 20 && i % 2 == 0) bad_request("document {} cannot be read", i);
            return texts[size_t(i)];
          },
          [&](int64_t, std::span<const int32_t>) { taken++; }, {.threads = threads});
    });
    EXPECT_EQ(why, "document 20 cannot be read");
    EXPECT_EQ(taken, 20);
    why = refusal([&] {
      encode_documents(
          t, 60, [&](int64_t i) { return texts[size_t(i)]; },
          [&](int64_t i, std::span<const int32_t>) {
            if (i == 7) bad_request("no room for document {}", i);
          },
          {.threads = threads});
    });
    EXPECT_EQ(why, "no room for document 7");
  }
}

}  // namespace
}  // namespace trireme
