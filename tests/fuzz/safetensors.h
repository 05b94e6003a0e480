// A mutator for safetensors files: the library's own changes, in the header's JSON or anywhere, after which
// lengths are mostly put right. Else nearly every change of a header's size is refused by its first eight
// bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace trireme::fuzz {

// Behind the brace that closes the first one, outside of strings; all of the text where none does.
inline size_t end_of_object(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); i++) {
    if (quoted && text[i] == '\\')
      i++;
    else if (text[i] == '"')
      quoted = !quoted;
    else if (!quoted && text[i] == '{')
      depth++;
    else if (!quoted && text[i] == '}' && --depth <= 0)
      return i + 1;
  }
  return text.size();
}

// Where the header says that the data end: the largest number behind a "data_offsets", of at most `most`.
inline size_t end_of_data(std::string_view header, size_t most) {
  constexpr std::string_view kKey = "\"data_offsets\"";
  size_t end = 0;
  for (size_t at = 0; (at = header.find(kKey, at)) != header.npos;) {
    at += kKey.size();
    for (size_t n = 0; at < header.size() && header[at] != ']' && header[at] != '}'; at++) {
      const bool digit = header[at] >= '0' && header[at] <= '9';
      n = digit && n <= most ? 10 * n + size_t(header[at] - '0') : 0;
      if (n > end && n <= most) end = n;
    }
  }
  return end;
}

// Changes the file in place; its new size.
inline size_t mutate_safetensors(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  constexpr size_t kLength = 8;
  if (size <= kLength || max_size <= kLength || seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const auto text = [&](size_t n) {
    return std::string_view(reinterpret_cast<const char*>(data), n).substr(kLength);
  };
  // The header alone, or the data too.
  const std::string behind(seed % 8 < 6 ? text(size).substr(end_of_object(text(size))) : "");
  size = kLength + LLVMFuzzerMutate(data + kLength, size - kLength - behind.size(), max_size - kLength);
  const size_t kept = std::min(behind.size(), max_size - size);
  std::memcpy(data + size, behind.data(), kept);
  size += kept;
  const uint64_t header = end_of_object(text(size));
  std::memcpy(data, &header, kLength);
  if (seed % 8 == 1) return size;
  const size_t wanted = kLength + header + end_of_data(text(size).substr(0, header), max_size);
  if (wanted > max_size) return size;
  if (wanted > size) std::memset(data + size, 0, wanted - size);
  return wanted;
}

}  // namespace trireme::fuzz
