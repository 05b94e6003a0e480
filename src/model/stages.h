// Which layers each stage of a pipeline holds.
#pragma once
#include <vector>

#include "model/build.h"

namespace trireme {

// Neighbouring blocks for each of `stages`, at least one block for each; the embedding comes before the first
// and the head behind the last. The stage that costs most costs as little as it can, by FLOPs of a token in a
// sequence of `seq` (cost/flops.h; the head counts, looking up embeddings does not). Among such cuts it is
// the one whose stages cost most alike (least squares): a microbatch passes all of them, and shallow stages
// would make deep ones no shorter. Among equal ones the early stages take more, because their neighbours wait
// for them anyway.
std::vector<StageRange> split_layers(const ModelSpec&, int64_t seq, int stages);

}  // namespace trireme
