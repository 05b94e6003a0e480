// Sums and maxima of the same elements of several ranks: what reductions between ranks are made of.
//
// Plain functions of the calling thread (no OpenMP), for worker threads and rank threads alike. Pieces may
// lie on a device (device_memory.h): where all do, it adds them itself if it can, else they are brought to
// the host, and results back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace trireme::cpu {

// Every dst[i] = src[0][i] + src[1][i] + ..., added in that order and rounded once: f32, bf16 and f16 in f32,
// f64 in f64, i32 and i64 exactly (they wrap). An element is read from all sources before it is written
// anywhere, so a destination may be one of the sources. No other overlap. At least one source.
void sum_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType);
// The same for the largest; NaN if any is NaN.
void max_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType);

// memcpy for pieces of any size; no overlap, but dst may be src.
void copy_piece(std::byte* dst, const std::byte* src, int64_t n);
// Of the last level, in bytes: 8 MiB where the system does not say, and 64 MiB at most, for larger ones are
// many ranks'.
int64_t last_cache_bytes();

}  // namespace trireme::cpu
