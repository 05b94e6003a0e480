// The CPU as a device: one rank's memory is an anonymous mapping, the compute stream is the rank's thread,
// every other stream a thread of its own (worker.h).
#pragma once
#include "device/cpu/launch.h"
#include "device/device.h"

namespace trireme::cpu {

// Cores in this process's affinity mask: what `threads = 0` means.
int usable_cores();
// Threads that the environment lets a team have (OMP_THREAD_LIMIT): no rank has more, whatever was asked for.
int most_threads();
// A bad request where the processor lacks what Highway's kernels are compiled for (targets.h): on x86-64 AVX2
// and what came with it. Before anything of theirs is called, measurements of peaks included.
void require_processor();
Context make_context(const DeviceOptions&);  // a negative thread count is a bad request

// Does the processor multiply this type itself? f32 and f64 always; bf16 with AVX512-BF16 or AMX-BF16.
bool multiplies_natively(DType);

// dst[i] = src[i] for equal shapes and dtypes, any strides. Memory must not overlap unless it is the same.
void copy_strided(const Tensor& dst, const Tensor& src);

}  // namespace trireme::cpu
