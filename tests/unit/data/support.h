// A folder that goes away with the test, and shards made by hand, byte by byte.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/token_shard.h"

namespace trireme {

class TestFolder {
 public:
  TestFolder() {
    static std::atomic<int> count{0};
    path_ = fs::path(testing::TempDir()) / fmt::format("trireme_data_{}_{}", ::getpid(), count++);
    make_folders(path_);
  }
  TestFolder(const TestFolder&) = delete;
  ~TestFolder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

// A file as it is, not flushed to disk: tests write many.
inline void put_file(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// Little-endian bytes, put together by hand.
class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    for (size_t i = 0; i < sizeof(T); i++) bytes_ += char(uint64_t(value) >> 8 * i);
    return *this;
  }
  Bytes& text(std::string_view s) {
    bytes_ += s;
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

// A .idx as Megatron writes it, from lists that may lie.
struct IndexFile {
  uint64_t version = 1;
  uint8_t code = 8;
  std::vector<int32_t> lengths;
  std::vector<int64_t> offsets;
  std::vector<int64_t> starts;
  uint64_t more_sequences = 0, more_starts = 0;  // added to the true counts
  std::string str() const {
    Bytes b;
    b.text(std::string_view("MMIDIDX\0\0", 9)).put(version).put(code);
    b.put(uint64_t(lengths.size()) + more_sequences).put(uint64_t(starts.size()) + more_starts);
    for (int32_t n : lengths) b.put(n);
    for (int64_t at : offsets) b.put(at);
    for (int64_t s : starts) b.put(s);
    return b.str();
  }
};

inline std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s));
}

// The message of the Error that f() throws, which must be a bad request in one line; "" when it throws none.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  return "";
}

inline std::vector<int32_t> all_tokens(const TokenShard& shard, int64_t vocab = 1 << 30) {
  std::vector<int32_t> out(size_t(shard.tokens()));
  shard.read(0, out, vocab);
  return out;
}

}  // namespace trireme
