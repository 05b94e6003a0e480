// A microbatch as the layers see it.
#pragma once
#include "tensor/tensor.h"

namespace trireme {

// The caller keeps it alive until the backward pass of the microbatch is done. All three are i32 [sequences,
// seq].
struct BatchView {
  Tensor tokens;
  Tensor targets;    // next tokens; -1 = no loss at this place
  Tensor positions;  // position of each token, for rope and learned positions
  // i32 [P, sequences, seq], optional: where each row's document begins among the keys of each of the P ranks
  // that divide sequences (all of them, where a rank attends to whole ones); none: rows see what lies before
  // them, whatever the documents.
  Tensor documents;
  int64_t sequences = 0, seq = 0;  // seq: of this rank, where ranks divide sequences
  int64_t first_sequence = 0;      // index of the first one in the global batch
  int64_t rows() const { return sequences * seq; }
};

}  // namespace trireme
