#include "data/token_shard.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"
#include "data/loader.h"
#include "data/shard_writer.h"
#include "support.h"

namespace trireme {
namespace {

using Ids = std::vector<int32_t>;

std::vector<Ids> random_documents(uint64_t seed, int64_t vocab, int n) {
  std::vector<Ids> out;
  for (int d = 0; d < n; d++) {
    uint64_t key = rng_key(seed, uint64_t(d), "document");
    Ids ids(below(key, 0, 40));
    for (size_t i = 0; i < ids.size(); i++) ids[i] = int32_t(below(key, i + 1, uint64_t(vocab)));
    out.push_back(ids);
  }
  return out;
}
Ids joined(const std::vector<Ids>& documents) {
  Ids out;
  for (const Ids& d : documents) out.insert(out.end(), d.begin(), d.end());
  return out;
}

TEST(TokenShard, WrittenAndReadIsTheSame) {
  TestFolder folder;
  for (int64_t vocab : {int64_t(1), int64_t(300), int64_t(65499), int64_t(65500), int64_t(1) << 31}) {
    auto documents = random_documents(uint64_t(vocab), vocab, 57);
    {
      ShardWriter w(folder / "s", vocab);
      for (const Ids& d : documents) w.add_document(d);
      w.commit();
      EXPECT_EQ(w.documents(), 57);
      EXPECT_EQ(w.tokens(), int64_t(joined(documents).size()));
    }
    TokenShard s = TokenShard::open(folder / "s");
    EXPECT_EQ(s.documents(), 57);
    EXPECT_EQ(s.type(), vocab < 65500 ? TokenType::u16 : TokenType::i32);
    EXPECT_EQ(all_tokens(s, vocab), joined(documents));
    s.check_ids(vocab);
    int64_t token = 0;
    for (int64_t d = 0; d < 57; d++)
      for (int64_t i = 0; i < int64_t(documents[size_t(d)].size()); i++, token++) {
        auto place = s.place_of(token);
        ASSERT_EQ(place.document, d);
        ASSERT_EQ(place.token, i);
      }
  }
}

// Our record of the content follows what Megatron reads.
TEST(TokenShard, TheFilesAreMegatronsByteForByte) {
  TestFolder folder;
  ShardWriter w(folder / "s", 1000);
  w.add_document(Ids{1, 2, 999});
  w.add_document(Ids{});
  w.add_document(Ids{5});
  w.commit();
  EXPECT_EQ(read_text(folder / "s.bin"), std::string("\x01\0\x02\0\xE7\x03\x05\0", 8));
  IndexFile want{.lengths = {3, 0, 1}, .offsets = {0, 6, 6}, .starts = {0, 1, 2, 3}};
  const std::string bin = read_text(folder / "s.bin");
  const std::string before = want.str();
  Bytes record;
  record.text(std::string_view("TRIRXXH\0", 8)).put(hash64(bin.data(), bin.size()));
  record.put(hash64(before.data(), before.size()));
  EXPECT_EQ(read_text(folder / "s.idx"), before + record.str());
}

TEST(TokenShard, SaysOfWhichVocabularyItsIdsAre) {
  TestFolder folder;
  for (std::optional<uint64_t> vocabulary : {std::optional<uint64_t>(), std::optional<uint64_t>(77)}) {
    ShardWriter w(folder / "s", 10, vocabulary);
    w.add_document(Ids{1, 2, 9});
    w.commit();
    const TokenShard s = TokenShard::open(folder / "s");
    EXPECT_EQ(s.vocabulary(), vocabulary);
    EXPECT_EQ(all_tokens(s, 10), (Ids{1, 2, 9}));
  }
  write_text_atomic(folder / "raw.bin", std::string("\1\0", 2));
  EXPECT_EQ(TokenShard::open(folder / "raw.bin").vocabulary(), std::nullopt);
}

TEST(TokenShard, NothingIsSeenBeforeCommit) {
  TestFolder folder;
  {
    ShardWriter w(folder / "s", 10);
    w.add_document(Ids{1, 2});
    w.commit();
  }
  std::string bin = read_text(folder / "s.bin"), idx = read_text(folder / "s.idx");
  {
    ShardWriter w(folder / "s", 10);
    w.add_document(Ids(3000000, 7));
  }
  EXPECT_EQ(read_text(folder / "s.bin"), bin);
  EXPECT_EQ(read_text(folder / "s.idx"), idx);
  EXPECT_FALSE(fs::exists(folder / "s.bin.part"));
  ShardWriter w(folder / "s", 10);
  w.add_document(Ids(3000000, 7));
  w.commit();
  EXPECT_EQ(all_tokens(TokenShard::open(folder / "s")), Ids(3000000, 7));
}

TEST(TokenShard, TheWriterRefusesIdsOutsideTheVocabulary) {
  TestFolder folder;
  ShardWriter w(folder / "s", 10);
  w.add_document(Ids{9});
  for (int32_t id : {-1, 10, INT32_MIN, INT32_MAX}) {
    std::string why = refusal([&] { w.add_document(Ids{0, id}); });
    EXPECT_NE(why.find(fmt::format("token 1 of document 1 is {}", id)), std::string::npos) << why;
  }
  EXPECT_NE(refusal([&] { ShardWriter(folder / "no/such/folder", 10); }).find("no/such/folder"),
            std::string::npos);
}

TEST(TokenShard, NamesOfFiles) {
  TestFolder folder;
  ShardWriter w(folder / "s", 10);
  w.add_document(Ids{1, 2});
  w.commit();
  for (const char* name : {"s", "s.bin", "s.idx"})
    EXPECT_EQ(TokenShard::open(folder / name).tokens(), 2) << name;
  put_file(folder / "raw.v1.bin", std::string("\x01\0\xFF\xFF", 4));
  EXPECT_EQ(all_tokens(TokenShard::open(folder / "raw.v1.bin")), (Ids{1, 65535}));
  EXPECT_EQ(TokenShard::open(folder / "raw.v1.bin").documents(), 1);
  auto why = [&](const char* name) { return refusal([&] { TokenShard::open(folder / name); }); };
  EXPECT_NE(why("raw.v1").find("raw.v1.idx is missing"), std::string::npos) << why("raw.v1");
  EXPECT_NE(why("none").find("trireme tokenize"), std::string::npos) << why("none");
  put_file(folder / "odd.bin", "abc");
  EXPECT_NE(why("odd.bin").find("3 bytes"), std::string::npos);
  fs::rename(folder / "s.bin", folder / "elsewhere");
  EXPECT_NE(why("s").find("s.bin is missing"), std::string::npos);
  fs::create_directory(folder / "d.bin");
  EXPECT_NE(why("d.bin").find("not a regular file"), std::string::npos);
}

// Sequences out of order, with gaps and an empty one, of every type, at odd addresses.
TEST(TokenShard, ScatteredSequencesOfEveryType) {
  TestFolder folder;
  auto write = [&](auto zero, uint8_t code) {
    using T = decltype(zero);
    constexpr int64_t size = sizeof(T);
    Bytes bin;
    bin.text("?");  // sequence 0 = 10 11 12 at byte 1 + 2 * size; sequence 2 = 20 21 at byte 1
    for (int id : {20, 21, 10, 11, 12}) bin.put(T(id));
    put_file(folder / "s.bin", bin.str());
    IndexFile f{.code = code, .lengths = {3, 0, 2}, .offsets = {1 + 2 * size, 0, 1}, .starts = {0, 1, 3}};
    put_file(folder / "s.idx", f.str());
    TokenShard s = TokenShard::open(folder / "s");
    const Ids all = {10, 11, 12, 20, 21};
    EXPECT_EQ(all_tokens(s, 22), all);
    for (int64_t begin = 0; begin <= 5; begin++)
      for (int64_t n = 0; begin + n <= 5; n++) {
        Ids part(static_cast<size_t>(n));
        s.read(begin, part, 22);
        ASSERT_EQ(part, Ids(all.begin() + begin, all.begin() + begin + n));
      }
    EXPECT_EQ(s.place_of(4).document, 1);
    EXPECT_EQ(s.place_of(4).token, 1);
    s.check_ids(22);
    EXPECT_NE(refusal([&] { s.check_ids(21); }).find("token 1 of document 1 is 21"), std::string::npos);
  };
  write(uint8_t{}, 1), write(int8_t{}, 2), write(int16_t{}, 3), write(int32_t{}, 4), write(int64_t{}, 5);
  write(uint16_t{}, 8);
}

template <class T>
void expect_refused(const TestFolder& folder, uint8_t code, int64_t bad, int64_t vocab, size_t n, size_t at) {
  Bytes bin;
  for (size_t i = 0; i < n; i++) bin.put(T(i == at ? bad : int64_t(i) % std::min<int64_t>(vocab, 100)));
  put_file(folder / "s.bin", bin.str());
  IndexFile f{.code = code, .lengths = {int32_t(n / 2), int32_t(n - n / 2)}, .starts = {0, 1, 2}};
  f.offsets = {0, int64_t(n / 2 * sizeof(T))};
  put_file(folder / "s.idx", f.str());
  TokenShard s = TokenShard::open(folder / "s");
  size_t document = at >= n / 2, token = document ? at - n / 2 : at;
  std::string want = fmt::format("s.bin: token {} of document {} is {}, outside the vocabulary of {}", token,
                                 document, bad, vocab);
  for (const std::string& why :
       {refusal([&] { check_shard(folder / "s", vocab); }), refusal([&] { all_tokens(s, vocab); })})
    EXPECT_NE(why.find(want), std::string::npos) << "wanted " << want << ", got: " << why;
}

TEST(TokenShard, IdsOutsideTheVocabularyAreRefused) {
  TestFolder folder;
  for (size_t n : {2u, 3u, 70000u, 200001u})
    for (size_t at : {size_t(0), n / 2, n - 1}) {
      expect_refused<uint16_t>(folder, 8, 4096, 4096, n, at);
      expect_refused<uint16_t>(folder, 8, 65535, 4096, n, at);
      expect_refused<int32_t>(folder, 4, 100000, 100000, n, at);
      expect_refused<int32_t>(folder, 4, -1, 100000, n, at);
    }
  expect_refused<uint8_t>(folder, 1, 255, 255, 5, 3);
  expect_refused<int8_t>(folder, 2, -128, 4096, 5, 3);
  expect_refused<int16_t>(folder, 3, -1, 65536, 5, 3);
  expect_refused<int32_t>(folder, 4, INT32_MIN, 100000, 5, 3);
  expect_refused<int64_t>(folder, 5, int64_t(1) << 32, 100000, 5, 3);  // 0 in its lower half
  expect_refused<int64_t>(folder, 5, INT64_MIN, 100000, 5, 3);
}

TEST(TokenShard, EveryIdOfTheTypeMayBeInTheVocabulary) {
  TestFolder folder;
  put_file(folder / "s.bin", std::string("\xFF\xFF\0\0", 4));
  TokenShard s = TokenShard::open(folder / "s.bin");
  for (int64_t vocab : {int64_t(65536), int64_t(65537), int64_t(1) << 31}) {
    s.check_ids(vocab);
    EXPECT_EQ(all_tokens(s, vocab), (Ids{65535, 0}));
  }
  EXPECT_NE(refusal([&] { s.check_ids(65535); }), "");
}

TEST(TokenShard, Empty) {
  TestFolder folder;
  put_file(folder / "raw.bin", "");
  EXPECT_EQ(TokenShard::open(folder / "raw.bin").tokens(), 0);
  TokenShard::open(folder / "raw.bin").check_ids(1);
  ShardWriter w(folder / "s", 10);
  w.commit();
  TokenShard s = TokenShard::open(folder / "s");
  EXPECT_EQ(s.tokens(), 0);
  EXPECT_EQ(s.documents(), 0);
  s.check_ids(1);
}

}  // namespace
}  // namespace trireme
