// The content of shards: digests, the record that tokenize writes, changes on disk during a run.
#include "data/shard_content.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>

#include "data/shard_writer.h"
#include "support.h"

namespace trireme {
namespace {

void write_shard(const fs::path& name, std::optional<uint64_t> vocabulary = {}) {
  ShardWriter w(name, 61, vocabulary);
  w.add_document(std::vector<int32_t>{1, 2, 3, 4, 5});
  w.add_document(std::vector<int32_t>{6, 7});
  w.commit();
}

std::string with_bit_flipped(std::string text, size_t byte) {
  text[byte] = char(text[byte] ^ 1);
  return text;
}

std::string failure_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::run) << e.what();
    return e.what();
  }
  return "";
}

// Every byte of both files is covered: by the record, or by what the index itself must satisfy.
TEST(ShardContent, EachFlippedBitOfOurShardsIsFound) {
  TestFolder folder;
  write_shard(folder / "s", 77);
  const ShardContent before = check_content(TokenShard::open(folder / "s"), 61);
  for (const char* file : {"s.bin", "s.idx"}) {
    const std::string good = read_text(folder / file);
    for (size_t i = 0; i < good.size(); i++) {
      put_file(folder / file, with_bit_flipped(good, i));
      ShardContent now;
      const std::string told = refusal([&] { now = check_content(TokenShard::open(folder / "s"), 61); });
      // The vocabulary's fingerprint follows the record; a run compares it as content.
      if (!told.empty()) {
        EXPECT_NE(told.find("/s."), std::string::npos) << told;
        continue;
      }
      EXPECT_NE(now, before) << file << " byte " << i;
      EXPECT_GE(i, good.size() - 16) << file << " byte " << i;
    }
    put_file(folder / file, good);
  }
  EXPECT_EQ(check_content(TokenShard::open(folder / "s"), 61), before);
}

// Shards of other programs have no record: the digest covers every byte.
TEST(ShardContent, EachFlippedBitOfForeignShardsChangesTheDigest) {
  TestFolder folder;
  put_file(folder / "raw.bin", std::string(40, '\3'));
  const ShardContent before = content_of(TokenShard::open(folder / "raw.bin"));
  EXPECT_FALSE(before.idx);
  for (size_t i = 0; i < 40; i++) {
    put_file(folder / "raw.bin", with_bit_flipped(std::string(40, '\3'), i));
    EXPECT_NE(content_of(TokenShard::open(folder / "raw.bin")), before) << i;
  }
  put_file(folder / "other.bin", std::string(40, '\3'));
  EXPECT_EQ(content_of(TokenShard::open(folder / "other.bin")), before);
  EXPECT_EQ(check_content(TokenShard::open(folder / "other.bin"), 1000), before);
}

// Both digests are those of the whole file, also of one that is checked in several pieces.
TEST(ShardContent, PiecesAreTheWhole) {
  TestFolder folder;
  for (size_t bytes : {size_t(2), size_t(66) << 20}) {
    std::string text(bytes, '\1');
    for (size_t i = 0; i < bytes; i += 4098) text[i] = char(i / 4098 % 50);
    put_file(folder / "big.bin", text);
    const TokenShard shard = TokenShard::open(folder / "big.bin");
    EXPECT_EQ(check_content(shard, 1000), content_of(shard));
    EXPECT_EQ(content_of(shard).bin, (FileDigest{int64_t(bytes), hash64(text.data(), bytes)}));
    text[bytes - 1] = '\7';  // token 1793
    put_file(folder / "big.bin", text);
    const std::string told = refusal([&] { check_content(TokenShard::open(folder / "big.bin"), 1000); });
    EXPECT_NE(told.find("outside the vocabulary of 1000"), std::string::npos) << told;
  }
}

TEST(ShardContent, ASampleSeesSizesEndsAndIndex) {
  TestFolder folder;
  std::string text(size_t(3) << 20, '\1');
  auto sample = [&](const std::string& content) {
    put_file(folder / "x.bin", content);
    return sample_of(TokenShard::open(folder / "x.bin"));
  };
  const uint64_t before = sample(text);
  EXPECT_EQ(sample(text), before);
  EXPECT_NE(sample(text + "\1\1"), before);
  EXPECT_NE(sample(with_bit_flipped(text, 0)), before);
  EXPECT_NE(sample(with_bit_flipped(text, text.size() - 1)), before);
  write_shard(folder / "s");
  const uint64_t indexed = sample_of(TokenShard::open(folder / "s"));
  write_shard(folder / "s", 5);
  EXPECT_NE(sample_of(TokenShard::open(folder / "s")), indexed);
}

// Changes of a file during a run, and whether they end the run.
TEST(WatchedShard, OnlyContentThatTheRunReadsMatters) {
  TestFolder folder;
  const fs::path bin = folder / "x.bin";
  const std::string good(400, '\1');
  auto overwrite = [&](size_t at, char c) {
    std::fstream f(bin, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(std::streamoff(at)).put(c);
  };
  auto touch = [&](int64_t s) {
    const timespec times[2] = {{s, 0}, {s, 0}};
    ::utimensat(AT_FDCWD, bin.c_str(), times, 0);
  };
  auto told = [&](const std::function<void()>& change) {
    fs::remove(bin);
    put_file(bin, good);
    touch(1000);
    const ShardStamps stamps = stamps_of(bin);
    const TokenShard shard = TokenShard::open(bin);
    WatchedShard watched("data.train", stamps, content_of(shard));
    watched.check_mapped(shard);
    change();
    return failure_of([&] { watched.check_mapped(shard); });
  };
  EXPECT_EQ(told([] {}), "");
  EXPECT_EQ(told([&] { touch(2000); }), "");
  EXPECT_EQ(told([&] { fs::remove(bin); }), "");
  EXPECT_EQ(told([&] {
              put_file(folder / "y", std::string(400, '\2'));
              fs::rename(folder / "y", bin);
            }),
            "");
  for (int64_t bytes : {398, 0})
    EXPECT_NE(
        told([&] {
          fs::resize_file(bin, size_t(bytes));
        }).find(fmt::format("x.bin became shorter while the run reads it: 400 bytes -> {} bytes", bytes)),
        std::string::npos);
  const std::string text = told([&] { overwrite(399, '\5'); });
  EXPECT_NE(text.find("data.train = "), std::string::npos) << text;
  EXPECT_NE(text.find("x.bin: the same size, other content"), std::string::npos) << text;
  EXPECT_EQ(told([&] { overwrite(7, '\1'); }), "") << "written with the same content";
}

TEST(WatchedShard, AShardOpenedAgainMayBeAnotherFile) {
  TestFolder folder;
  const fs::path bin = folder / "v.bin";
  put_file(bin, std::string(400, '\1'));
  WatchedShard watched("data.valid", stamps_of(bin), content_of(TokenShard::open(bin)));
  auto replace = [&](const std::string& content) {
    put_file(folder / "y", content);
    fs::rename(folder / "y", bin);
    return failure_of([&] { watched.check_named(bin); });
  };
  EXPECT_EQ(replace(std::string(400, '\1')), "");
  EXPECT_NE(replace(std::string(400, '\2')).find("v.bin: the same size, other content"), std::string::npos);
  EXPECT_NE(replace(std::string(402, '\1')).find("v.bin: 400 bytes -> 402 bytes"), std::string::npos);
}

}  // namespace
}  // namespace trireme
