// Token files without an index, which other programs write: raw numbers, NumPy arrays, and llm.c's shards.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "data/indexed_dataset.h"

namespace trireme {

struct RawTokens {
  TokenType type = TokenType::u16;
  int64_t begin = 0;   // byte of the first token
  int64_t tokens = 0;  // they end the file
};

// Finds the layout of a file without an index:
//   - llm.c's shards: 256 int32 first, which begin with 20240520 (then uint16) or 20240801 (then uint32);
//   - .npy: its header names the type;
//   - raw numbers. A file does not say how wide they are. Token ids are small, so the upper halves of wider
//   numbers
//     are nearly all zero, which no file of uint16 has.
// bad_request, naming `name`: it is something else (compressed, text, a table, an index), or contradicts
// itself.
RawTokens raw_tokens(std::span<const std::byte> file, std::string_view name);

}  // namespace trireme
