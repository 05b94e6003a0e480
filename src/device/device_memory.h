// Memory that the processor cannot read: ranges of it, how bytes move between it and anything else, and how
// its device adds what lies there.
//
// Rank threads exchange data by pointers (comm/thread); what copies and adds pieces on the host asks here
// first. Without such a device nothing is registered, and asking costs one load.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace trireme {

// Moves bytes from anywhere to anywhere; done when it returns.
using CopyBytes = void (*)(void* dst, const void* src, int64_t bytes);

// What cpu::sum_pieces and max_pieces do (cpu/sum_pieces.h), to the same bits, of pieces that all lie in
// ranges of this function; done when it returns. False where it does not take so many, and did nothing.
using FoldPieces = bool (*)(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n,
                            DType, bool max);

// A device's range, from its reserve() to its release(). Thread-safe. A range is named once. Without a fold,
// what lies there is added on the host.
void add_device_memory(const std::byte* begin, int64_t bytes, CopyBytes, FoldPieces = nullptr);
void remove_device_memory(const std::byte* begin);

// Null where p is memory of the host.
CopyBytes device_copy_of(const void* p);
// Null, too, where its device adds nothing.
FoldPieces device_fold_of(const void* p);
// The range that p lies in, empty where there is none. Numbers of ranges are never used again.
struct DeviceRangeOf {
  const std::byte* begin = nullptr;
  int64_t bytes = 0, number = 0;
};
DeviceRangeOf device_range_of(const void* p);

}  // namespace trireme
