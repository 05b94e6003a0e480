#include "data/raw_shard.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/printable.h"

namespace trireme {
namespace {

constexpr int32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801;
constexpr int64_t kHeader = 1024;      // bytes of llm.c's header
constexpr int64_t kSample = 1 << 16;   // uint16 that are examined
constexpr int64_t kFewestValues = 12;  // different token ids
constexpr int64_t kFewest = 64;        // uint16 that tell a width
constexpr uint16_t kMostUpper = 15;    // upper half of an id below 2^20

template <class T>
T number_at(std::span<const std::byte> file, int64_t at) {
  T value;
  std::memcpy(&value, file.data() + at, sizeof(T));
  return value;
}
std::string_view text_of(std::span<const std::byte> file, size_t most) {
  return {reinterpret_cast<const char*>(file.data()), std::min(most, file.size())};
}

// The kind of a file without tokens, by its first bytes; "": perhaps tokens. Two bytes are a token id like
// any other, so a short mark does not count.
std::string_view foreign_kind(std::string_view head) {
  const std::string_view kind = marked_kind(head);
  const bool gzip = head.starts_with("\x1F\x8B");
  if (gzip ? head.size() > 3 && head[2] == 8 && uint8_t(head[3]) < 0x20
           : kind != "UTF-16 text" && kind != "an Arrow stream" && !kind.empty())
    return kind;
  const bool text = head.size() >= size_t(kFewest) && std::all_of(head.begin(), head.end(), [](char c) {
                      return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
                    });
  return text ? "text, not token ids (`trireme tokenize` encodes text)" : "";
}

RawTokens llmc(std::span<const std::byte> file, std::string_view name) {
  const bool wide = number_at<int32_t>(file, 0) == kLlama3Magic;
  const int32_t version = number_at<int32_t>(file, 4), right = wide ? 7 : 1;
  if (version != right)
    bad_request("{}: it has llm.c's header of version {}; version {} is supported", name, version, right);
  const int64_t tokens = number_at<int32_t>(file, 8), bytes = int64_t(file.size()) - kHeader,
                size = wide ? 4 : 2;
  if (tokens < 0 || tokens * size != bytes)
    bad_request("{}: its header of llm.c counts {} tokens of {} bytes, but {} bytes follow", name, tokens,
                size, bytes);
  return {wide ? TokenType::i32 : TokenType::u16, kHeader, tokens};
}

// The value of a key in the header of a .npy, which is a Python literal: {'descr': '<u2', 'shape': (3,), }.
std::string_view npy_value(std::string_view header, std::string_view key) {
  size_t at = header.find(key);
  if (at == std::string_view::npos || (at = header.find(':', at)) == std::string_view::npos) return {};
  at = std::min(header.find_first_not_of(' ', at + 1), header.size());
  const char open = at < header.size() ? header[at] : '\0';
  const size_t end = open == '('    ? header.find(')', at)
                     : open == '\'' ? header.find('\'', at + 1)
                                    : header.find(',', at);
  return end == std::string_view::npos ? std::string_view()
                                       : header.substr(at, end - at + (open == '(' || open == '\''));
}

RawTokens npy(std::span<const std::byte> file, std::string_view name) {
  const bool old = file.size() >= 10 && uint8_t(file[6]) == 1;
  const int64_t fixed = old ? 10 : 12;
  if (int64_t(file.size()) < fixed) bad_request("{}: a .npy file that is cut short", name);
  const int64_t length = old ? number_at<uint16_t>(file, 8) : int64_t(number_at<uint32_t>(file, 8));
  if (length > int64_t(file.size()) - fixed) bad_request("{}: a .npy file that is cut short", name);
  const std::string_view header = text_of(file.subspan(size_t(fixed)), size_t(length));
  const std::string_view descr = npy_value(header, "'descr'"), shape = npy_value(header, "'shape'");
  struct Type {
    std::string_view descr;
    TokenType type;
  };
  constexpr Type kTypes[] = {{"'<u2'", TokenType::u16}, {"'<i2'", TokenType::i16}, {"'<u4'", TokenType::i32},
                             {"'<i4'", TokenType::i32}, {"'<i8'", TokenType::i64}, {"'<u8'", TokenType::i64},
                             {"'|u1'", TokenType::u8},  {"'|i1'", TokenType::i8}};
  const Type* type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return t.descr == descr; });
  if (type == std::end(kTypes))
    bad_request("{}: a .npy file of type {}; little-endian integers are supported", name, printable(descr));
  RawTokens raw{type->type, fixed + length, 0};
  const int64_t bytes = int64_t(file.size()) - raw.begin;
  raw.tokens = bytes / size_of(raw.type);
  if (shape != fmt::format("({},)", raw.tokens) || bytes % size_of(raw.type) != 0)
    bad_request(
        "{}: a .npy file of shape {} with {} bytes; one dimension is supported, and all of its numbers", name,
        printable(shape), bytes);
  return raw;
}

// Bytes of a number, as the sizes of its parts tell. A pattern that repeats every few tokens can look like
// wider numbers, so the lower halves must also have many values.
int64_t width_of(std::span<const std::byte> file) {
  const int64_t n = std::min<int64_t>(int64_t(file.size()) / 2, kSample) / 4 * 4;
  if (n < kFewest) return 2;
  uint16_t most[4] = {};  // largest numbers at places 0 to 3 of each four
  std::vector<bool> seen(65536);
  int64_t values = 0;  // different lower halves
  for (int64_t i = 0; i < n; i++) {
    const auto number = number_at<uint16_t>(file, 2 * i);
    most[i % 4] = std::max(most[i % 4], number);
    if (i % 2 == 1 || seen[number]) continue;
    seen[number] = true;
    values++;
  }
  if (values < kFewestValues) return 2;
  const uint16_t lower = std::max(most[0], most[2]), upper = std::max(most[1], most[3]);
  if (most[2] == 0 && most[3] == 0 && most[0] > 0 && most[1] <= kMostUpper) return 8;
  return upper <= kMostUpper && lower >= 16 * (upper + 1) && most[0] > 0 && most[2] > 0 ? 4 : 2;
}

}  // namespace

RawTokens raw_tokens(std::span<const std::byte> file, std::string_view name) {
  const std::string_view head = text_of(file, 4096);
  if (head.starts_with("\x93NUMPY")) return npy(file, name);
  if (const std::string_view kind = foreign_kind(head); !kind.empty())
    bad_request(
        "{} is {}; a file without an .idx holds raw uint16 or uint32, a .npy array, or a shard of llm.c",
        name, kind);
  if (int64_t(file.size()) >= kHeader)
    if (const auto magic = number_at<int32_t>(file, 0); magic == kGpt2Magic || magic == kLlama3Magic)
      return llmc(file, name);
  const int64_t size = width_of(file);
  if (int64_t(file.size()) % size != 0)
    bad_request("{} has {} bytes: raw tokens of {} bytes each have a multiple of it", name, file.size(),
                size);
  return {size == 2   ? TokenType::u16
          : size == 4 ? TokenType::i32
                      : TokenType::i64,
          0, int64_t(file.size()) / size};
}

}  // namespace trireme
