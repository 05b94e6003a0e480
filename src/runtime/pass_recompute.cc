// What a forward pass lets go, and how the backward pass gets it again (docs/recompute.md).
#include <algorithm>

#include "model/tensor_parallel.h"
#include "runtime/offload.h"
#include "runtime/stage_passes.h"

namespace trireme {

// Blocks are computed again, an embedding and a head never.
void StagePasses::find_recompute() {
  recompute_.resize(stage_.layers.size());
  if (!trains_) return;
  for (const Chunk& c : chunks_) {
    const size_t first = c.first + c.embedding, last = c.last - c.head;
    for (size_t l = first; l < last; l++) recompute_[l] = recompute_of(run_.layout, int64_t(l - first));
  }
}

// After a layer's forward pass. Of an input that is kept alone, ranks of tp may keep a part of the rows each.
void StagePasses::drop(const Op& op) {
  const auto [m, chunk, layer, slot] = place_of(op);
  const Recompute& r = recompute_[layer];
  if (!r.full) return stage_.layers[layer]->let_go(r, m.saved[layer]);
  m.saved[layer].clear();
  if (run_.layout.recompute_shard && sharing_.tp.group) {
    const int64_t rows = kept_rows();
    Owned own(arena_, Bucket::activations, {rows, m.x[slot]->cols()}, dtype_);
    device_.copy(*own, m.x[slot]->narrow(0, sharing_.tp.rank * rows, rows), compute_);
    m.x[slot] = std::move(own);
  }
  if (offload_) send_away(m, slot);
}

// Of a block's input that is kept alone, on this rank.
int64_t StagePasses::kept_rows() const {
  const bool parts = run_.layout.sequence || run_.layout.recompute_shard;
  return run_.batch.micro * run_.data.seq_len / sharing_.cp.size / (parts ? sharing_.tp.size : 1);
}

int64_t StagePasses::kept_bytes() const {
  return kept_rows() * run_.model.hidden * size_of(dtype_);
}

// Inputs that wait at once: from `drop` to `again`.
int64_t StagePasses::most_away(const Program& program) const {
  int64_t most = 0, now = 0;
  for (const Op& op : program.ops) {
    if (op.layer < 0 || !recompute_[size_t(op.layer)].full) continue;
    now += (op.kind == OpKind::drop) - (op.kind == OpKind::again);
    most = std::max(most, now);
  }
  return most;
}

void StagePasses::free_places() {
  if (!offload_) return;
  const size_t places = offload_places_;
  free_places_.resize(places);
  for (size_t i = 0; i < places; i++) free_places_[i] = int32_t(places - 1 - i);
}

// The memory goes back when the next one leaves, or the forward pass ends: a place of the program.
void StagePasses::send_away(Microbatch& m, size_t slot) {
  settle_away();
  leaving_ = std::move(m.x[slot]);
  require(!free_places_.empty(), "more inputs wait outside than the schedule said");
  const int32_t place = free_places_.back();
  free_places_.pop_back();
  left_ = offload_->put(place, place * kept_bytes(), *leaving_);
  m.away[slot] = place + 1;
}
void StagePasses::settle_away() {
  if (!leaving_) return;
  device_.wait(compute_, left_);
  leaving_.reset();
}

void StagePasses::fetch(const Place& at) {
  Microbatch& m = at.m;
  const size_t slot = at.slot;
  if (m.away[slot] == 0 || m.fetched[slot].stream != 0) return;
  m.x[slot] = Owned(arena_, Bucket::activations, {kept_rows(), run_.model.hidden}, dtype_);
  const int64_t place = m.away[slot] - 1;
  m.fetched[slot] = offload_->get(place, place * kept_bytes(), *m.x[slot]);
}

// Before a layer's backward pass. Routers count their choices by microbatch, so a second time counts once.
void StagePasses::recompute(const Op& op) {
  const Place at = place_of(op);
  const auto& [m, chunk, layer, slot] = at;
  Ctx& ctx = pass_context(m);
  const Recompute& r = recompute_[layer];
  const RecomputeScope traced(watch_.tracer.get());
  if (!r.full) return stage_.layers[layer]->again(ctx, *m.x[slot], m.saved[layer]);
  fetch(at);
  device_.wait(compute_, std::exchange(m.fetched[slot], Event()));
  if (const int32_t place = std::exchange(m.away[slot], 0)) free_places_.push_back(place - 1);
  if (run_.layout.recompute_shard && sharing_.tp.group)
    m.x[slot] = gathered_rows(ctx, sharing_.tp, *m.x[slot]);
  stage_.layers[layer]->forward(ctx, *m.x[slot], m.saved[layer]);
}

}  // namespace trireme
