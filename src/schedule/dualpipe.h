// DualPipe and DualPipe-V give their ranks the same sequence over two chunks; they differ in which chunks.
#pragma once
#include "schedule/writer.h"

namespace trireme {

// What the rank at depth d of n does (0: where microbatches enter) with `near`, whose microbatches come from
// its own end, and `far`, whose come back or from the other end; `each` microbatches through either, at least
// 2n. Forward and backward of different chunks are issued together wherever both are there.
void write_dualpipe(std::vector<Action>& out, int depth, int depths, Chunk near, Chunk far, int each);

}  // namespace trireme
