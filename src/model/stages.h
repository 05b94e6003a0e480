// Which layers each stage of a pipeline holds.
#pragma once
#include <string_view>
#include <vector>

#include "base/interned.h"
#include "model/build.h"
#include "spec/run_spec.h"

namespace trireme {

// Neighbouring blocks for each of `stages`, at least one block for each; the embedding comes before the first
// and the head behind the last. The stage that costs most costs as little as it can, by FLOPs of a token in a
// sequence of `seq` (cost/flops.h; the head counts, looking up embeddings does not). Among such cuts it is
// the one whose stages cost most alike (least squares): a microbatch passes all of them, and shallow stages
// would make deep ones no shorter. Among equal ones the early stages take more, because their neighbours wait
// for them anyway.
std::vector<StageRange> split_layers(const ModelSpec&, int64_t seq, int stages);

// As many blocks for each. Where they do not divide, the last stage has one less, then the first, then others
// from the end; only the first, which has the embedding, and the last, which has the head, may have none: at
// most two stages more than blocks.
std::vector<StageRange> split_evenly(const ModelSpec&, int stages);

// These numbers of blocks. Requires: their sum is ModelSpec::layers.
std::vector<StageRange> stages_of(const NumberList& layers);

// As the run says (layout.stage_layers, layout.cut).
std::vector<StageRange> split_layers(const RunSpec&, int stages);
// As layout.cut says, or, unless null, as `layers` does (layout.stage_layers).
std::vector<StageRange> split_layers(const ModelSpec&, int64_t seq, std::string_view cut,
                                     const NumberList* layers, int stages);

// Stages that run at different speeds: the slowest takes as little time as it can. speeds: by stage, any
// unit. Among such cuts the early stages have more.
NumberList split_by_speed(const ModelSpec&, int64_t seq, const std::vector<double>& speeds);

}  // namespace trireme
