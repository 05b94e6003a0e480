// Scratch of an embedding's gradient: the sums of pieces of long lists (embedding.cu).
#pragma once
#include <cstdint>

namespace trireme::cuda {

constexpr int32_t kPiecePlaces = 128;  // places per piece of a list; one block sums a piece
// Rows of [pieces, padded columns] f32.
constexpr int64_t embedding_pieces(int64_t ids) {
  return ids / kPiecePlaces;
}
constexpr int64_t padded_columns(int64_t cols) {
  return (cols + 7) / 8 * 8;
}

}  // namespace trireme::cuda
