// What one microbatch in flight holds.
#pragma once
#include <vector>

#include "runtime/stage_runner.h"

namespace trireme {

struct StageRunner::Microbatch {
  Owned tokens, targets, positions, token_loss, documents;
  BatchView view;
  std::vector<Owned> x;   // x[l]: input of layer l; x[0] stays empty on the first stage
  std::vector<Owned> dx;  // dx[l]: gradient of x[l]
  std::vector<Saved> saved;

  void resize(size_t layers) {
    x.resize(layers + 1);
    dx.resize(layers + 1);
    saved.resize(layers);
  }

  // document_rows: 0 where attention sees all that lies before.
  void allocate_batch(Arena& arena, int64_t sequences, int64_t seq, int64_t document_rows) {
    require(!tokens, "a microbatch runs forward before its last backward pass is done");
    Shape s{sequences, seq};
    tokens = Owned(arena, Bucket::activations, s, DType::i32);
    targets = Owned(arena, Bucket::activations, s, DType::i32);
    positions = Owned(arena, Bucket::activations, s, DType::i32);
    token_loss = Owned(arena, Bucket::activations, {sequences * seq}, DType::f32);
    if (document_rows > 0)
      documents =
          Owned(arena, Bucket::activations, {document_rows / (sequences * seq), sequences, seq}, DType::i32);
    view = {.tokens = *tokens,
            .targets = *targets,
            .positions = *positions,
            .documents = documents ? *documents : Tensor(),
            .sequences = sequences,
            .seq = seq};
  }

  void release() {
    for (Owned& t : x) t.reset();
    for (Owned& t : dx) t.reset();
    tokens.reset(), targets.reset(), positions.reset(), token_loss.reset(), documents.reset();
    view = {};
  }

  // After an error or for a replay: whatever is still held goes back.
  void abandon() {
    for (Saved& s : saved) s.clear();
    release();
  }
};

}  // namespace trireme
