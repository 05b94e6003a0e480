#include "model/linear.h"

#include "model/fp8.h"

namespace trireme {
namespace {

// One view over the storage of neighbouring parameters, from the element numbered `begin` on. Made at each
// use: weights and gradients may lie elsewhere in every pass (ZeRO 2 and 3).
Tensor joined(std::span<Param* const> ps, Tensor Param::*field, int64_t begin, const Shape& shape) {
  const Tensor& first = ps[0]->*field;
  require(bool(first), "a linear layer runs while its weights or gradients are nowhere");
  int64_t offset = ps[0]->offset;
  for (const Param* p : ps) {
    require(p->offset == offset, "the parts of a linear layer are not neighbours in memory");
    offset += p->numel();
  }
  return Tensor(first.data + begin * size_of(first.dtype), shape, first.dtype);
}

}  // namespace

Linear::Linear(std::vector<Part> parts, int64_t in, bool bias, float init_std, Divide divide, TensorPlace tp)
    : parts_(std::move(parts)),
      in_(divide == Divide::rows ? in / tp.size : in),
      bias_(bias),
      init_std_(init_std),
      divide_(divide),
      tp_(tp) {
  require(divide != Divide::rows || in % tp.size == 0, "tp divides the inputs of a layer divided by rows");
  find_runs();
}

int64_t Linear::rows_of(const Part& p) const {
  if (!by_columns()) return p.out;
  require(p.shared || p.out % tp_.size == 0, "tp divides the outputs of a layer divided by columns");
  return p.shared ? p.used : p.out / tp_.size;
}

void Linear::find_runs() {
  for (size_t i = 0; i < parts_.size(); i++) {
    const int64_t rows = rows_of(parts_[i]);
    const bool complete = !by_columns() || !parts_[i].shared || rows == parts_[i].out;
    if (i > 0 && complete && runs_.back().complete)
      runs_.back().last++, runs_.back().rows += rows;
    else
      runs_.push_back({i, i + 1, complete ? 0 : parts_[i].first, rows, out_, complete});
    out_ += rows;
  }
}

void Linear::declare(std::vector<ParamDecl>& decls) const {
  const int64_t in = divide_ == Divide::rows ? in_ * tp_.size : in_;
  auto sum_grad = [&](const Part& p) { return p.shared ? std::vector<Axis>{Axis::tp} : std::vector<Axis>{}; };
  for (const Part& p : parts_) {
    ShardSpec shard;
    if (divide_ != Divide::none && !p.shared) shard = sharded(divide_ == Divide::rows ? 1 : 0, Axis::tp);
    decls.push_back({.name = p.name + ".weight",
                     .global = {p.out, in},
                     .shard = shard,
                     .init = {Init::Kind::normal, init_std_},
                     .decay = true,
                     .hidden_matrix = true,
                     .tied_to = {},
                     .sum_grad = sum_grad(p),
                     .linear = name()});
  }
  if (!bias_) return;
  for (const Part& p : parts_)
    decls.push_back({.name = p.name + ".bias",
                     .global = {p.out},
                     .shard = by_columns() && !p.shared ? sharded(0, Axis::tp) : ShardSpec(),
                     .init = {},
                     .decay = false,
                     .tied_to = {},
                     .sum_grad = sum_grad(p)});
}

void Linear::bind(ParamSet& set) {
  weights_.clear(), biases_.clear();
  for (const Part& p : parts_) weights_.push_back(set.find(p.name + ".weight"));
  adapters_.bind(set, adapted_parts());
  if (!bias_) return;
  for (const Part& p : parts_) biases_.push_back(set.find(p.name + ".bias"));
}

std::vector<AdaptedPart> Linear::adapted_parts() const {
  std::vector<AdaptedPart> out;
  int64_t column = 0;
  for (const Part& p : parts_) {
    const int64_t rows = rows_of(p);
    const bool complete = !by_columns() || !p.shared || rows == p.out;
    out.push_back({p.name, column, rows, complete ? 0 : p.first, complete});
    column += rows;
  }
  return out;
}

Tensor Linear::matrix(const Run& r, Tensor Param::*field) const {
  return joined(std::span(weights_).subspan(r.first, r.last - r.first), field, r.row * in_, {r.rows, in_});
}
Tensor Linear::vector(const Run& r, Tensor Param::*field) const {
  return joined(std::span(biases_).subspan(r.first, r.last - r.first), field, r.row, {r.rows});
}

// Are the run's gradients started? All or none; marks them started. Rows that this rank does not use are
// zero.
bool Linear::start(Ctx& ctx, const Run& r, const std::vector<Param*>& ps) const {
  bool was = false;
  for (size_t i = r.first; i < r.last; i++) was = ps[i]->start_grad();
  if (!was && !r.complete) ctx.k.run(ZeroArgs{.y = ps[r.first]->grad}, ctx.compute);
  return was;
}

const Fp8Layers* Linear::in_8_bits(const Ctx& ctx) const {
  return ctx.fp8 && ctx.fp8->has(name()) ? ctx.fp8 : nullptr;
}

// One product, of no ranks' summand: gelu is of all of it.
bool Linear::gelu_in_product(const Ctx& ctx, DType t) const {
  return ctx.k.gelu_in_products(t) && !in_8_bits(ctx) && runs_.size() == 1 && !divided(Divide::rows) &&
         !adapters_.any();
}
bool Linear::gelu_in_back_product(const Ctx& ctx, DType t) const {
  return ctx.k.gelu_in_products(t) && !in_8_bits(ctx) && runs_.size() == 1 && !by_columns() &&
         !adapters_.any();
}

int64_t Linear::rows_out(const Tensor& x) const {
  return x.rows() * (rows_apart(Divide::columns) ? tp_.size : 1);
}

// y = x W^T + b (+ residual) of some rows. Divided by rows of W^T, one rank adds the bias to its summand.
void Linear::product(Ctx& ctx, const Tensor& x, const Tensor& y, const Tensor& residual, const Tensor& gelu,
                     const Tensor& h) const {
  const bool biased = bias_ && !(divided(Divide::rows) && tp_.rank > 0), only = runs_.size() == 1;
  const Fp8Layers* fp8 = in_8_bits(ctx);
  const Fp8Codes x8 = fp8 ? fp8->quantise(ctx, name(), Fp8Operand::x, x, false) : Fp8Codes();
  for (const Run& r : runs_) {
    auto part = [&](const Tensor& t) { return only || !t ? t : t.narrow(1, r.column, r.rows); };
    const Tensor w = matrix(r, &Param::weight), bias = biased ? vector(r, &Param::weight) : Tensor();
    if (fp8) {
      const Fp8Codes w8 = fp8->quantise(ctx, name(), Fp8Operand::w, w, false);
      multiply(ctx, x8.view, w8.view, part(y), {.trans_b = true, .bias = bias, .residual = part(residual)});
      continue;
    }
    if (gelu) {
      require(!residual && gelu_in_product(ctx, x.dtype), "a product has no gelu in it");
      ctx.k.run(MatmulGeluArgs{.a = x, .b = w, .c = y, .y = gelu, .trans_b = true, .bias = bias},
                ctx.compute);
      continue;
    }
    ctx.k.run(
        MatmulArgs{.a = x, .b = w, .c = part(y), .trans_b = true, .bias = bias, .residual = part(residual)},
        ctx.compute);
  }
  if (!adapters_.any()) return;
  const Owned own = h ? Owned() : ctx.activation({x.rows(), adapters_.width()});
  adapters_.forward(ctx, x, y, h ? h : *own);
}

// dx = dy W of some rows.
void Linear::back_product(Ctx& ctx, const Tensor& dy, const Tensor& dx, const Tensor& before,
                          const Tensor& dh) const {
  const Fp8Layers* fp8 = in_8_bits(ctx);
  for (const Run& r : runs_) {
    const Tensor columns = runs_.size() == 1 ? dy : dy.narrow(1, r.column, r.rows);
    const Tensor w = matrix(r, &Param::weight);
    if (fp8) {
      const Fp8Codes dy8 = fp8->quantise(ctx, name(), Fp8Operand::dy, columns, false);
      const Fp8Codes w8 = fp8->quantise(ctx, name(), Fp8Operand::w, w, true);
      multiply(ctx, dy8.view, w8.view, dx, {.accumulate = r.column > 0});
      continue;
    }
    if (before) {
      require(gelu_in_back_product(ctx, dy.dtype), "a product has no gelu in it");
      ctx.k.run(MatmulGeluBackwardArgs{.a = dy, .b = w, .x = before, .c = dx}, ctx.compute);
      continue;
    }
    ctx.k.run(MatmulArgs{.a = columns, .b = w, .c = dx, .accumulate = r.column > 0}, ctx.compute);
  }
  if (adapters_.any()) adapters_.backward_input(ctx, dy, dx, dh);
}

// dW (+)= dy^T x.
void Linear::weight_product(Ctx& ctx, const Tensor& dy, const Tensor& x, const Fp8View* kept) const {
  const Fp8Layers* fp8 = in_8_bits(ctx);
  const Fp8Codes own = fp8 && !kept ? fp8->quantise(ctx, name(), Fp8Operand::x, x, true) : Fp8Codes();
  const Fp8View& x8 = kept ? *kept : own.view;
  for (const Run& r : runs_) {
    const Tensor columns = runs_.size() == 1 ? dy : dy.narrow(1, r.column, r.rows);
    const Tensor dw = matrix(r, &Param::grad);
    const bool accumulate = start(ctx, r, weights_);
    if (fp8) {
      const Fp8Codes dy8 = fp8->quantise(ctx, name(), Fp8Operand::dy, columns, true);
      multiply(ctx, dy8.view, x8, dw, {.trans_a = true, .accumulate = accumulate});
    } else {
      ctx.k.run(MatmulArgs{.a = columns, .b = x, .c = dw, .trans_a = true, .accumulate = accumulate},
                ctx.compute);
    }
    if (bias_)
      ctx.k.run(
          ColumnSumArgs{.dy = columns, .db = vector(r, &Param::grad), .accumulate = start(ctx, r, biases_)},
          ctx.compute);
  }
}

// Of rows that are gathered for the product, the gathered ones would have to be kept.
bool Linear::keeps_codes(const Ctx& ctx) const {
  return own_input_ && in_8_bits(ctx) && ctx.fp8->keeps_inputs() && !rows_apart(Divide::columns);
}

Owned Linear::forward(Ctx& ctx, const Tensor& x, Saved& saved, const Tensor& residual,
                      const Tensor& gelu) const {
  if (!keeps_codes(ctx)) {
    saved.borrow(this, Kept::x, x);
    if (!adapters_.any() || !ctx.backward) return again(ctx, x, residual, gelu);
    Owned h = ctx.activation({rows_out(x), adapters_.width()});
    Owned y = compute(ctx, x, residual, gelu, *h);
    saved.keep(this, Kept::h, std::move(h));
    return y;
  }
  Owned y = again(ctx, x, residual, gelu);
  Fp8Codes x8 = ctx.fp8->quantise(ctx, name(), Fp8Operand::x, x, true);
  saved.keep(this, Kept::codes, std::move(x8.codes));
  saved.keep(this, Kept::scale, std::move(x8.scale));
  return y;
}

Owned Linear::again(Ctx& ctx, const Tensor& x, const Tensor& residual, const Tensor& gelu) const {
  return compute(ctx, x, residual, gelu, {});
}

// Behind a sum over ranks comes the residual: rounded as often as without ranks.
Owned Linear::compute(Ctx& ctx, const Tensor& x, const Tensor& residual, const Tensor& gelu,
                      const Tensor& h) const {
  Owned y;
  auto rows_of = [](const Tensor& t, int64_t first, int64_t rows) {
    return t ? t.narrow(0, first, rows) : t;
  };
  if (rows_apart(Divide::columns)) {
    y = ctx.activation({rows_out(x), out_});
    gathered_product(ctx, tp_, x, [&](int64_t first, int64_t rows, const Tensor& from) {
      product(ctx, from, y->narrow(0, first, rows), rows_of(residual, first, rows),
              rows_of(gelu, first, rows), rows_of(h, first, rows));
    });
    return y;
  }
  auto summand = [&](int64_t first, int64_t rows, const Tensor& to) {
    product(ctx, x.narrow(0, first, rows), to, {}, {}, rows_of(h, first, rows));
  };
  if (rows_apart(Divide::rows)) {
    y = scattered_product(ctx, tp_, x.rows(), out_, summand);
  } else {
    y = ctx.activation({x.rows(), out_});
    if (!divided(Divide::rows)) {
      product(ctx, x, *y, residual, gelu, h);
      return y;
    }
    summed_product(ctx, tp_, *y, summand);
  }
  if (residual) ctx.k.run(AddArgs{.a = *y, .b = residual, .y = *y}, ctx.compute);
  return y;
}

Owned Linear::backward_input(Ctx& ctx, const Tensor& dy, Saved& saved, const Tensor& before) const {
  Owned gathered = rows_apart(Divide::rows) ? gathered_rows(ctx, tp_, dy) : Owned();
  const Tensor out = gathered ? *gathered : dy;
  if (gathered)
    saved.keep(this, Kept::dy, std::move(gathered));
  else
    saved.borrow(this, Kept::dy, dy);
  Tensor dh;
  if (adapters_.any()) {
    Owned own = ctx.activation({out.rows(), adapters_.width()});
    dh = *own;
    saved.keep(this, Kept::dh, std::move(own));
  }
  auto summand = [&](int64_t first, int64_t rows, const Tensor& to) {
    back_product(ctx, out.narrow(0, first, rows), to, {}, dh ? dh.narrow(0, first, rows) : dh);
  };
  if (rows_apart(Divide::columns)) return scattered_product(ctx, tp_, out.rows(), in_, summand);
  Owned dx = ctx.activation({out.rows(), in_});
  if (divided(Divide::columns))
    summed_product(ctx, tp_, *dx, summand);
  else
    back_product(ctx, out, *dx, before, dh);
  return dx;
}

void Linear::backward_weight(Ctx& ctx, Saved& saved) const {
  if (frozen() && !adapters_.any()) return saved.drop_all(this);
  const Tensor dy = saved.get(this, Kept::dy);
  if (saved.has(this, Kept::codes)) {
    Fp8View x8 = ctx.fp8->form(Fp8Operand::x, true);
    x8.codes = saved.get(this, Kept::codes), x8.scale = saved.get(this, Kept::scale);
    weight_product(ctx, dy, {}, &x8);
    return saved.drop_all(this);
  }
  Tensor x = saved.get(this, Kept::x);
  Owned gathered = rows_apart(Divide::columns) ? gathered_rows(ctx, tp_, x) : Owned();
  if (gathered) x = *gathered;
  if (frozen()) {
    adapters_.backward_weight(ctx, dy, x, saved.get(this, Kept::h), saved.get(this, Kept::dh));
    return saved.drop_all(this);
  }
  weight_product(ctx, dy, x, nullptr);
  saved.drop_all(this);
}

}  // namespace trireme
