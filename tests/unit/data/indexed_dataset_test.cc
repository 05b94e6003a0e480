#include "data/indexed_dataset.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "support.h"

namespace trireme {
namespace {

IndexFile valid() {
  return {.lengths = {3, 0, 5, 2}, .offsets = {0, 6, 6, 16}, .starts = {0, 1, 1, 4}};  // u16, 20 bytes
}
IndexView parse(const std::string& idx, int64_t bin_bytes) {
  return IndexView::parse(bytes_of(idx), bin_bytes, "x.idx");
}
std::string refusal_of(const IndexFile& f, int64_t bin_bytes = 20) {
  return refusal([&] { parse(f.str(), bin_bytes); });
}

TEST(IndexedDataset, ReadsAnIndex) {
  std::string idx = valid().str();
  IndexView v = parse(idx, 20);
  EXPECT_EQ(v.type(), TokenType::u16);
  EXPECT_EQ(v.sequences(), 4);
  EXPECT_EQ(v.documents(), 3);
  EXPECT_EQ(v.tokens(), 10);
  EXPECT_TRUE(v.contiguous());
  EXPECT_EQ(v.length(2), 5);
  EXPECT_EQ(v.offset(3), 16);
  EXPECT_EQ(v.document_begin(2), 1);
  EXPECT_EQ(v.document_begin(3), 4);
  EXPECT_EQ(parse(idx + std::string(4, '\0'), 20).tokens(), 10);  // modes of multimodal data
}

// Behind all else, with modes of multimodal data and without; a record that is cut short is none.
TEST(IndexedDataset, MaySayOfWhichVocabularyItsIdsAre) {
  const std::string idx = valid().str(), record("TRIRTOK\0\x88\x77\x66\x55\x44\x33\x22\x11", 16);
  for (const std::string& modes : {std::string(), std::string(4, '\1')}) {
    EXPECT_EQ(parse(idx + modes, 20).vocabulary(), std::nullopt);
    const std::string whole = idx + modes + record;
    EXPECT_EQ(parse(whole, 20).vocabulary(), 0x1122334455667788u);
    EXPECT_EQ(parse(whole, 20).documents(), 3);
    for (size_t n = 1; n < 16; n++) {
      const std::string cut = whole.substr(0, whole.size() - n);
      if (modes.size() + 16 - n == 4) continue;  // what is left of it passes for modes
      EXPECT_NE(refusal([&] { parse(cut, 20); }).find("do not add up"), std::string::npos) << n;
    }
    EXPECT_NE(refusal([&] { parse(whole + "x", 20); }), "");
  }
  const std::string none = IndexFile{.starts = {0}}.str() + record;
  EXPECT_EQ(parse(none, 0).vocabulary(), 0x1122334455667788u);
}

TEST(IndexedDataset, SequencesMayLieInAnyOrder) {
  IndexFile f{.lengths = {2, 3}, .offsets = {10, 0}, .starts = {0, 2}};
  std::string idx = f.str();
  IndexView v = parse(idx, 20);
  EXPECT_FALSE(v.contiguous());
  EXPECT_EQ(v.tokens(), 5);
}

TEST(IndexedDataset, Empty) {
  std::string idx = IndexFile{.starts = {0}}.str();
  EXPECT_EQ(parse(idx, 0).tokens(), 0);
  EXPECT_EQ(parse(idx, 0).documents(), 0);
}

TEST(IndexedDataset, TypesAndTheirSizes) {
  const std::pair<TokenType, int64_t> sizes[] = {{TokenType::u8, 1},  {TokenType::i8, 1},
                                                 {TokenType::i16, 2}, {TokenType::i32, 4},
                                                 {TokenType::i64, 8}, {TokenType::u16, 2}};
  for (auto [type, size] : sizes) {
    IndexFile f{.code = uint8_t(type), .lengths = {7}, .offsets = {0}, .starts = {0, 1}};
    std::string idx = f.str();
    EXPECT_EQ(parse(idx, 7 * size).type(), type);
    EXPECT_NE(refusal_of(f, 7 * size - 1), "");
  }
  EXPECT_EQ(token_type_for(65499), TokenType::u16);
  EXPECT_EQ(token_type_for(65500), TokenType::i32);
}

TEST(IndexedDataset, LiesAreRefused) {
  auto lie = [&](auto&& change, const char* named, int64_t bin_bytes = 20) {
    IndexFile f = valid();
    change(f);
    std::string got = refusal_of(f, bin_bytes);
    EXPECT_NE(got.find(named), std::string::npos) << "wanted " << named << ", got: " << got;
    EXPECT_EQ(got.rfind("x.idx", 0), 0u) << got;
  };
  lie([](IndexFile& f) { f.version = 2; }, "version 2");
  lie([](IndexFile& f) { f.code = 0; }, "element type 0");
  lie([](IndexFile& f) { f.code = 9; }, "element type 9");
  lie([](IndexFile& f) { f.code = 6; }, "floating-point");
  lie([](IndexFile& f) { f.code = 7; }, "floating-point");
  lie([](IndexFile& f) { f.more_sequences = 1; }, "do not add up");
  lie([](IndexFile& f) { f.more_sequences = uint64_t(-1); }, "do not add up");
  lie([](IndexFile& f) { f.more_starts = 1; }, "do not add up");
  lie([](IndexFile& f) { f.more_starts = uint64_t(-1); }, "do not add up");
  // Counts that would wrap around to the true size, were they multiplied in 64 bits.
  lie([](IndexFile& f) { f.more_sequences = uint64_t(1) << 62; }, "do not add up");
  lie([](IndexFile& f) { f.more_starts = uint64_t(1) << 61; }, "do not add up");
  lie([](IndexFile& f) { f.starts.clear(); }, "no document borders");
  lie([](IndexFile& f) { f.starts[0] = 1; }, "begins at sequence 1");
  lie([](IndexFile& f) { f.starts[2] = 9; }, "document 1 is the sequences 1 to 9, of 4");
  lie([](IndexFile& f) { f.starts[2] = 0; }, "document 1");
  lie([](IndexFile& f) { f.starts[1] = -1; }, "document 0");
  lie([](IndexFile& f) { f.starts[3] = INT64_MAX; }, "document 2");
  lie([](IndexFile& f) { f.lengths[2] = -1; }, "sequence 2 has -1");
  lie([](IndexFile& f) { f.lengths[3] = 3; }, "sequence 3 (3 tokens");
  lie([](IndexFile& f) { f.lengths[3] = INT32_MAX; }, "lies outside");
  lie([](IndexFile& f) { f.offsets[1] = -2; }, "lies outside");
  lie([](IndexFile& f) { f.offsets[1] = 21; }, "lies outside");
  lie([](IndexFile& f) { f.offsets[3] = INT64_MAX; }, "lies outside");
  lie([](IndexFile& f) { f.offsets[3] = INT64_MIN; }, "lies outside");
  lie([](IndexFile& f) { f.lengths = {10, 10, 0, 0}, f.offsets = {0, 0, 0, 0}; }, "overlap");
  lie([](IndexFile& f) { f.starts = {0}; }, "documents end at sequence 0, but it has 4 sequences");
  lie([](IndexFile& f) { f.starts = {0, 1, 2}; }, "documents end at sequence 2, but it has 4 sequences");
  lie([](IndexFile& f) { f.starts = {0, 3, 2, 4}; }, "document 1 is the sequences 3 to 2");
  // Out of order is right; a shared token is not.
  EXPECT_EQ(refusal_of({.lengths = {3, 0, 5, 2}, .offsets = {14, 0, 4, 0}, .starts = {0, 1, 1, 4}}), "");
  lie(
      [](IndexFile& f) {
        f.offsets = {14, 0, 4, 2};
      },
      "sequences 2 and 3 overlap: one ends at byte 6, the other");
  lie([](IndexFile&) {}, "do not belong together", 22);
  lie([](IndexFile&) {}, "lies outside", 18);
}

TEST(IndexedDataset, HeadersAreRefused) {
  auto refused = [](const std::string& idx, const char* named) {
    std::string got = refusal([&] { parse(idx, 20); });
    EXPECT_NE(got.find(named), std::string::npos) << got;
  };
  std::string idx = valid().str();
  refused("", "not a Megatron index");
  refused("MMIDIDX", "not a Megatron index");
  refused("nonsense" + idx, "not a Megatron index");
  refused(std::string("TNTIDX\0\0", 8) + idx, "old format");
  for (size_t n = 9; n < idx.size(); n++) EXPECT_NE(refusal([&] { parse(idx.substr(0, n), 20); }), "") << n;
  refused(idx + "x", "do not add up");
}

// Every mutation either reads, and then all that it says lies inside the files, or is refused.
TEST(IndexedDataset, MutationsNeverLeadOutside) {
  const std::string idx = valid().str();
  int loaded = 0, rounds = 20000;
  for (int round = 0; round < rounds; round++) {
    uint64_t key = rng_key(31, uint64_t(round), "index");
    std::string bad = idx;
    for (uint64_t i = 0; i <= below(key, 0, 3); i++) {
      size_t at = below(key, 4 * i + 1, bad.size());
      uint64_t what = below(key, 4 * i + 2, 8);
      if (what == 0)
        bad.resize(at + 1);
      else if (what == 1)
        bad.insert(at, 1 + below(key, 4 * i + 3, 16), '\0');
      else if (what == 2)
        bad[at] = "\xFF\x7F\x80\x01"[below(key, 4 * i + 3, 4)];
      else
        bad[at] = char(below(key, 4 * i + 3, what < 5 ? 256 : 8));
    }
    try {
      IndexView v = parse(bad, 20);
      loaded++;
      int64_t tokens = 0;
      for (int64_t s = 0; s < v.sequences(); s++) {
        ASSERT_GE(v.length(s), 0);
        ASSERT_GE(v.offset(s), 0);
        ASSERT_LE(v.offset(s) + v.length(s) * size_of(v.type()), 20);
        tokens += v.length(s);
      }
      ASSERT_EQ(tokens, v.tokens());
      for (int64_t d = 0; d < v.documents(); d++) {
        ASSERT_LE(v.document_begin(d), v.document_begin(d + 1));
        ASSERT_LE(v.document_begin(d + 1), v.sequences());
      }
    } catch (const Error& e) {
      ASSERT_EQ(e.fault, Fault::request) << e.what();
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, rounds / 2);
}

}  // namespace
}  // namespace trireme
