// Token files without an index, as other programs write them.
#include "data/raw_shard.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "support.h"

namespace trireme {
namespace {

using Ids = std::vector<int32_t>;

Ids raw_tokens_of(const fs::path& path) {
  const TokenShard s = TokenShard::open(path);
  Ids ids(size_t(s.tokens()));
  s.read(0, ids, int64_t(1) << 31);
  return ids;
}
std::string raw_refusal(const fs::path& path) {
  return refusal([&] { TokenShard::open(path); });
}
Ids random_ids(int64_t n, int64_t vocab) {
  Ids ids;
  for (int64_t i = 0; i < n; i++)
    ids.push_back(int32_t(below(rng_key(3, uint64_t(i), "raw"), 0, uint64_t(vocab))));
  return ids;
}
template <class T>
std::string raw(const Ids& ids) {
  Bytes b;
  for (int32_t id : ids) b.put(T(id));
  return b.str();
}
std::string llmc_header(int32_t magic, int32_t version, int32_t tokens) {
  Bytes b;
  b.put(magic).put(version).put(tokens);
  return b.str() + std::string(1024 - b.str().size(), '\0');
}
std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  Bytes b;
  b.text("\x93NUMPY").put(uint8_t(1)).put(uint8_t(0)).put(uint16_t(header.size()));
  return b.str() + header + data;
}

TEST(RawShard, WidthsAreFoundOut) {
  TestFolder folder;
  const fs::path file = folder / "a.bin";
  for (int64_t vocab : {300, 50257, 65535, 128256, 262144, 1 << 20}) {
    const Ids ids = random_ids(3000, vocab);
    put_file(file, raw<uint32_t>(ids));
    EXPECT_EQ(raw_tokens_of(file), ids) << "uint32, vocabulary of " << vocab;
    put_file(file, raw<int64_t>(ids));
    EXPECT_EQ(raw_tokens_of(file), ids) << "int64, vocabulary of " << vocab;
  }
  for (int64_t vocab : {1, 2, 16, 17, 61, 256, 4096, 65535}) {
    const Ids ids = random_ids(3000, vocab);
    put_file(file, raw<uint16_t>(ids));
    EXPECT_EQ(raw_tokens_of(file), ids) << "uint16, vocabulary of " << vocab;
  }
  Ids pattern;
  for (int i = 0; i < 3000; i++) pattern.push_back(i % 2 ? i % 3 : 300 + i % 8);
  put_file(file, raw<uint16_t>(pattern));
  EXPECT_EQ(raw_tokens_of(file), pattern);
  put_file(file, raw<uint32_t>(random_ids(3000, 128256)) + "xx");
  EXPECT_NE(raw_refusal(file).find("12002 bytes: raw tokens of 4 bytes each"), std::string::npos)
      << raw_refusal(file);
}

TEST(RawShard, ShardsOfLlmC) {
  TestFolder folder;
  const fs::path file = folder / "fineweb_val_000000.bin";
  const Ids small = random_ids(500, 50257), large = random_ids(500, 128256);
  put_file(file, llmc_header(20240520, 1, 500) + raw<uint16_t>(small));
  EXPECT_EQ(raw_tokens_of(file), small);
  put_file(file, llmc_header(20240801, 7, 500) + raw<uint32_t>(large));
  EXPECT_EQ(raw_tokens_of(file), large);
  put_file(file, llmc_header(20240520, 1, 0));
  EXPECT_EQ(raw_tokens_of(file), Ids());
  put_file(file, llmc_header(20240520, 2, 500) + raw<uint16_t>(small));
  EXPECT_NE(raw_refusal(file).find("llm.c's header of version 2"), std::string::npos) << raw_refusal(file);
  for (int32_t tokens : {499, 501, -1}) {
    put_file(file, llmc_header(20240801, 7, tokens) + raw<uint32_t>(large));
    EXPECT_NE(
        raw_refusal(file).find(fmt::format("counts {} tokens of 4 bytes, but 2000 bytes follow", tokens)),
        std::string::npos)
        << raw_refusal(file);
  }
}

TEST(RawShard, NumPyArrays) {
  TestFolder folder;
  const fs::path file = folder / "a.npy";
  const Ids ids = {1, 2, 100, 7};
  const std::pair<const char*, std::string> types[] = {
      {"<u2", raw<uint16_t>(ids)}, {"<i2", raw<int16_t>(ids)}, {"<u4", raw<uint32_t>(ids)},
      {"<i4", raw<int32_t>(ids)},  {"<i8", raw<int64_t>(ids)}, {"<u8", raw<int64_t>(ids)},
      {"|u1", raw<uint8_t>(ids)},
  };
  for (const auto& [descr, data] : types) {
    put_file(file, npy(descr, "(4,)", data));
    EXPECT_EQ(raw_tokens_of(file), ids) << descr;
  }
  put_file(folder / "b.bin", npy("<u4", "(4,)", raw<uint32_t>(ids)));
  EXPECT_EQ(raw_tokens_of(folder / "b.bin"), ids);
  auto refused = [&](const std::string& content, const char* why) {
    put_file(file, content);
    EXPECT_NE(raw_refusal(file).find(why), std::string::npos) << raw_refusal(file);
  };
  refused(npy(">u2", "(4,)", raw<uint16_t>(ids)), "of type '>u2'");
  refused(npy("<f4", "(4,)", raw<uint32_t>(ids)), "of type '<f4'");
  refused(npy("<u2", "(2, 2)", raw<uint16_t>(ids)), "of shape (2, 2)");
  refused(npy("<u2", "(5,)", raw<uint16_t>(ids)), "of shape (5,)");
  for (size_t n = 6; n < 70; n++) refused(npy("<u2", "(4,)", raw<uint16_t>(ids)).substr(0, n), "a .npy file");
}

TEST(RawShard, WhatIsNoTokensIsNamed) {
  TestFolder folder;
  const std::pair<std::string, const char*> cases[] = {
      {std::string("\x1F\x8B\x08\0", 4), "compressed by gzip"},
      {"\x28\xB5\x2F\xFD", "compressed by zstd"},
      {"BZh9", "compressed by bzip2"},
      {std::string("\xFD"
                   "7zXZ\0",
                   6),
       "compressed by xz"},
      {"PK\x03\x04", "a zip archive"},
      {"PAR1", "a Parquet table"},
      {std::string("MMIDIDX\0\0", 9), "the index of a token shard"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "a pointer of Git LFS"},
      {"{\"text\": \"a line of a corpus that nobody has encoded so far\"}", "text, not token ids"},
  };
  for (const auto& [head, kind] : cases) {
    std::string content = head + std::string(200 - head.size(), head[0] == '{' ? ' ' : '\7');
    put_file(folder / "a.bin", content);
    EXPECT_NE(raw_refusal(folder / "a.bin").find(kind), std::string::npos) << raw_refusal(folder / "a.bin");
  }
  // Two bytes are a token like any other.
  put_file(folder / "a.bin", raw<uint16_t>({0x8B1F, 9, 0xFEFF, 3}));
  EXPECT_EQ(raw_tokens_of(folder / "a.bin"), (Ids{0x8B1F, 9, 0xFEFF, 3}));
}

}  // namespace
}  // namespace trireme
