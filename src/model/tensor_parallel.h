// The collectives of tensor parallelism (Shoeybi et al. 2019, section 3), on the compute stream. What they
// rest on: a product is a sum over its inner dim, so ranks that each hold a part of that dim hold summands.
#pragma once
#include <algorithm>
#include <array>
#include <functional>

#include "model/layer.h"

namespace trireme {

// How ranks of tp divide a linear layer: by rows of its result's columns ([out / tp, in]: each rank has the
// whole input and a part of the output), or by its input's ([out, in / tp]: each has a part of the input, and
// a summand of the whole output). own_columns: by columns, of an input that each rank has made whole for
// itself; nothing is gathered, and dx stays a summand, which whoever made the input adds up behind it.
enum class Divide : uint8_t { none, columns, rows, own_columns };

// A rank's place among those that divide a layer. sequence: what lies between the divided layers (norms,
// residuals, dropout) is divided too, each rank having as many rows of the activations, in rank order
// (Korthikanti et al. 2022, arXiv 2205.05198): sums become reduce_scatters, and inputs are gathered.
struct TensorPlace {
  int size = 1, rank = 0;
  bool sequence = false;          // only with size > 1
  Communicator* group = nullptr;  // the ranks; null: size = 1, or the layer makes no passes

  int parts() const { return sequence ? size : 1; }  // of the rows between divided layers
  int part() const { return sequence ? rank : 0; }
  std::vector<Axis> sum_of_rows() const {  // sum_grad of what only sees those rows
    return sequence ? std::vector<Axis>{Axis::tp} : std::vector<Axis>{};
  }
};

// Rows of a table with one for each token id, divided over tp.
inline ShardSpec vocabulary_shard() {
  ShardSpec s = sharded(0, Axis::tp);
  s.ragged = true;
  return s;
}

void wait_for_tp(Ctx&, Event);
// What it takes is time spent waiting for other ranks, or moving (LayerGroups::waited_s).
void timed(const Ctx&, const std::function<void()>& collective);

// start(stream) issues one collective. Compute waits for it; another pass, if there is one, computes
// meanwhile, and the collective then goes to the stream `beside`.
template <class Start>
void collective(Ctx& ctx, Stream beside, const Start& start) {
  if (!ctx.groups.other_pass) return timed(ctx, [&] { start(ctx.compute); });
  ctx.device.wait(beside, ctx.device.record(ctx.compute));
  start(beside);
  wait_for_tp(ctx, ctx.device.record(beside));
}

// t becomes the sum of all ranks' t: in rank order, rounded once. Nothing to do for one rank.
void sum_over_tp(Ctx&, const TensorPlace&, const Tensor& t);
// own: this rank's part of full, which holds a part of each rank, in rank order.
void gather_over_tp(Ctx&, const TensorPlace&, const Tensor& own, const Tensor& full);
// All ranks' rows of x [n, C], as an activation [tp n, C].
Owned gathered_rows(Ctx&, const TensorPlace&, const Tensor& x);
// This rank's rows [N / tp, C] of the sum of all ranks' summands [N, C].
Owned scattered_sum(Ctx&, const TensorPlace&, const Tensor& summand);

// ---- products and the collectives beside them, in LayerGroups::chunks ----

// Issued behind what compute was given, on the stream beside it.
void start_sum(Ctx&, const TensorPlace&, const Tensor& t);
void start_scattered_sum(Ctx&, const TensorPlace&, const Tensor& summand, const Tensor& own);
inline constexpr int64_t kMostChunks = 64;

// y [N, C] summed over tp: product(first, rows, to) computes this rank's summand of some rows.
template <class Product>
void summed_product(Ctx& ctx, const TensorPlace& tp, const Tensor& y, const Product& product) {
  const int64_t chunks = std::min(ctx.groups.chunks, y.rows());
  if (chunks == 1) {
    product(0, y.rows(), y);
    return sum_over_tp(ctx, tp, y);
  }
  for (int64_t i = 0; i < chunks; i++) {
    const Range r = piece_of(y.rows(), int(chunks), int(i));
    const Tensor rows = y.narrow(0, r.begin, r.size());
    product(r.begin, r.size(), rows);
    start_sum(ctx, tp, rows);
  }
  wait_for_tp(ctx, ctx.device.record(ctx.groups.tp_stream));
}

// The same, of which each rank gets its rows [N / tp, C]. A chunk is of a piece of every rank's rows.
template <class Product>
Owned scattered_product(Ctx& ctx, const TensorPlace& tp, int64_t rows, int64_t columns,
                        const Product& product) {
  const int64_t ranks = tp.size, n = rows / ranks, chunks = std::min(ctx.groups.chunks, n);
  Owned summand = ctx.activation({rows, columns});
  if (chunks == 1) {
    product(0, rows, *summand);
    return scattered_sum(ctx, tp, *summand);
  }
  Owned own = ctx.activation({n, columns});
  for (int64_t i = 0; i < chunks; i++) {
    const Range r = piece_of(n, int(chunks), int(i));
    const Tensor chunk = summand->narrow(0, ranks * r.begin, ranks * r.size());
    for (int64_t rank = 0; rank < ranks; rank++)
      product(rank * n + r.begin, r.size(), chunk.narrow(0, rank * r.size(), r.size()));
    start_scattered_sum(ctx, tp, chunk, own->narrow(0, r.begin, r.size()));
  }
  wait_for_tp(ctx, ctx.device.record(ctx.groups.tp_stream));
  return own;
}

// x [n, C] of every rank: product(first, rows, from) for some rows of [tp n, C] as they arrive.
template <class Product>
void gathered_product(Ctx& ctx, const TensorPlace& tp, const Tensor& x, const Product& product) {
  const int64_t ranks = tp.size, n = x.rows(), chunks = std::min(ctx.groups.chunks, n);
  if (chunks == 1) {
    Owned full = gathered_rows(ctx, tp, x);
    return product(0, ranks * n, *full);
  }
  require(chunks <= kMostChunks, "more chunks than there may be");
  Owned full = ctx.activation({ranks * n, x.cols()});
  std::array<Event, kMostChunks> arrived;
  ctx.device.wait(ctx.groups.tp_stream, ctx.device.record(ctx.compute));
  for (int64_t i = 0; i < chunks; i++) {
    const Range r = piece_of(n, int(chunks), int(i));
    tp.group->all_gather(
        {.shard = x.narrow(0, r.begin, r.size()), .full = full->narrow(0, ranks * r.begin, ranks * r.size())},
        ctx.groups.tp_stream);
    arrived[size_t(i)] = ctx.device.record(ctx.groups.tp_stream);
  }
  for (int64_t i = 0; i < chunks; i++) {
    const Range r = piece_of(n, int(chunks), int(i));
    wait_for_tp(ctx, arrived[size_t(i)]);
    for (int64_t rank = 0; rank < ranks; rank++)
      product(rank * n + r.begin, r.size(), full->narrow(0, ranks * r.begin + rank * r.size(), r.size()));
  }
}

}  // namespace trireme
