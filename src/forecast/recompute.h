// layout.recompute = "auto": as little as makes a step fit.
#pragma once
#include "runtime/booking.h"
#include "spec/cluster_spec.h"

namespace trireme {

// The run with what its ranks compute again in place of "auto"; a run without it as it is. Tensors are let go
// in the order of the FLOPs that a byte of them costs, in all blocks, until a step, booked on meta, fits
// layout.recompute_limit (the arena), or, where that is 0, the device (with what checkpoints are written
// from); of the last of them in as few blocks of each stage as are enough. Where nothing is enough: for the
// device, in full, which its forecast then says does not fit; for recompute_limit bad_request, as where no
// limit is known. The spec is resolved; the same on every rank. threads: of a rank.
RunSpec choose_recompute(RunSpec, const ClusterSpec&, int threads);

// The order: each choice lets go what the one before it does, and more; the last one is in full.
std::vector<Texts> recompute_order(const ModelSpec&, int64_t seq);

}  // namespace trireme
