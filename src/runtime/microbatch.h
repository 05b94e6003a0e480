// A microbatch: its host buffers, and the memory that it has between passes.
#pragma once
#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "model/layer.h"

namespace trireme {

// Host buffers of one microbatch, [sequences * seq] each, filled by the data side.
struct HostBatch {
  std::span<int32_t> tokens, targets, positions;
};
// A pure function of (step, microbatch). It must not allocate.
using FillBatch = std::function<void(int64_t step, int64_t mb, const HostBatch&)>;

struct Microbatch {
  Owned tokens, targets, positions, token_loss, documents;
  BatchView view;
  // By slot (StagePasses::Chunk): the input of each layer of a chunk, then the output of its last; x[0] stays
  // empty on the first stage. dx: their gradients.
  std::vector<Owned> x, dx;
  std::vector<int32_t> away;   // by slot: 0, or 1 + the place where the input waits outside (offload.h)
  std::vector<Event> fetched;  // by slot: it is on its way back until then
  std::vector<Saved> saved;    // by layer
  std::vector<Event> x_here, dx_here;  // by chunk: the input, and the output's gradient, have arrived
  int64_t own_targets = 0;             // that are no -1

  void resize(size_t layers, size_t chunks) {
    x.resize(layers + chunks);
    dx.resize(layers + chunks);
    away.resize(layers + chunks);
    fetched.resize(layers + chunks);
    saved.resize(layers);
    x_here.resize(chunks);
    dx_here.resize(chunks);
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
    std::fill(away.begin(), away.end(), 0);
    std::fill(fetched.begin(), fetched.end(), Event());
    release_batch();
  }
  // What is left after the last backward pass, but for the gradient that is still to be sent.
  void release_batch() {
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
