// What the launches of one CUDA device share. Plain C++, for nvcc, for the emulation and for meta.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/algorithms.h"
#include "tensor/tensor.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;  // as CUDA's headers have it

namespace trireme::cuda {

// One look at ids that come from data: what the message says if one of them is not in [low, high).
struct IndexCheck {
  std::string_view what, range;
  int64_t low = 0, high = 0;
  bool operator==(const IndexCheck&) const = default;
};

struct CudaContext {
  int device = 0, multiprocessors = 1, major = 0, minor = 0;
  int64_t shared_bytes = 0;     // shared memory of a multiprocessor
  std::string gpu;              // its name: "NVIDIA H100 80GB HBM3"
  bool deterministic = true;    // no choice of an algorithm depends on a clock
  bool sm90_attention = false;  // attention_sm90*.cu take what they can, which until they have run is a trial
  bool require_fp8 = false;     // a product of codes that no 8-bit kernel takes is an error
  mutable std::string_view last_kernel;  // that took the last launch, where its op has several

  // Ids are looked at on the device, and what was found is thrown at the next sync: checks of kind i write
  // the first bad place and its id into slot i (indices.h).
  static constexpr int64_t kIndexSlots = 1024;
  uint64_t* index_slots = nullptr;       // on the device, kIndexSlots
  std::vector<IndexCheck> index_checks;  // IndexCheck{}: its slot is free
  std::vector<char> index_kept;          // of each: a graph writes into its slot, which stays its own
  std::vector<uint64_t> index_found;     // room for the slots, on the host
  bool index_checked = false;            // ids were looked at since the last sync
  bool capturing = false;                // launches are kept, and do not run (device/graphs.h)

  // What matrix products keep on this device (handles, chosen algorithms): made and read by matmul.cu alone.
  // libcublasLt is opened with dlopen there, so that a program without a GPU starts without it.
  std::shared_ptr<void> products;
  KeptAlgorithms::Of chosen;  // of problems that came from outside (take_product_choices)
};

// Algorithms that products took: of deterministic runs the heuristic's first, else those that were timed
// (matmul_device.cu). take_product_choices: Device::take_choices, before the first product.
std::string product_choices(const CudaContext&);
std::string take_product_choices(CudaContext&, std::string_view text);

}  // namespace trireme::cuda
