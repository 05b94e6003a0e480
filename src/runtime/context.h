// A rank's part of a batch whose sequences are divided, and where documents begin in it (host memory).
#pragma once
#include <cstdint>
#include <span>

#include "mesh/context.h"

namespace trireme {

// i32 [sequences, seq] -> the rank's own [sequences, seq / P], in place, at the front.
void keep_own(std::span<int32_t> rows, int64_t seq, const ContextPlace&);

// positions [sequences, seq] of whole sequences restart at 0 with each document. first: i32 [P, sequences,
// seq / P]; of the block of rank s's keys that this rank's rows see (block_of), [sequences, q_rows] from the
// start of slice s on: how many of the block's keys lie before the row's document. Rows of slice s that no
// block has are 0.
void document_starts(std::span<const int32_t> positions, int64_t seq, const ContextPlace&,
                     std::span<int32_t> first);

}  // namespace trireme
