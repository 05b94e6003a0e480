#include "model/adapters.h"

#include <algorithm>
#include <cmath>

#include "model/build.h"
#include "spec/name_patterns.h"

namespace trireme {
namespace {

constexpr std::string_view kMatrixSuffix = ".weight";

std::string matrix_of(const ParamDecl& d) {
  return d.name.substr(0, d.name.size() - kMatrixSuffix.size());
}

// The two factors of a matrix [out, in] that ranks divide as d says. A's variance is that of PEFT's default,
// uniform in +-1/sqrt(in).
std::pair<ParamDecl, ParamDecl> factors_of(const ParamDecl& d, const LoraSpec& lora) {
  const int64_t out = d.global[0], in = d.global[1];
  const bool by_rows = d.shard.divides_along(Axis::tp) && !d.shard.axes_of_dim[1].empty();
  const bool by_columns = d.shard.divides_along(Axis::tp) && !by_rows;
  std::vector<Axis> sum = d.sum_grad;  // set for a part that ranks share
  ParamDecl a{.name = adapter_name(matrix_of(d), 'a'),
              .global = {lora.rank, in},
              .shard = by_rows ? sharded(1, Axis::tp) : ShardSpec(),
              .init = {Init::Kind::normal, float(1 / std::sqrt(3.0 * double(in)))},
              .decay = true,
              .tied_to = {},
              .sum_grad = by_columns ? std::vector<Axis>{Axis::tp} : sum,
              .adapter_scale = float(lora.alpha / double(lora.rank))};
  ParamDecl b = a;
  b.name = adapter_name(matrix_of(d), 'b');
  b.global = {out, lora.rank};
  b.shard = by_columns ? sharded(0, Axis::tp) : ShardSpec();
  b.init = {};
  b.sum_grad = by_rows ? std::vector<Axis>{Axis::tp} : sum;
  return {a, b};
}

bool adapted(const ParamDecl& d, const LoraSpec& lora) {
  return !d.linear.empty() && chosen(lora.targets, matrix_of(d));
}

}  // namespace

std::string adapter_name(std::string_view matrix, char which) {
  return std::string(matrix) + ".lora_" + which;
}

// Factors whose gradients ranks sum come first, so that one sum takes all of a layer. Among them, and among
// the others, A come before B: one product takes the A of a linear layer's matrices.
void add_adapters(std::vector<std::vector<ParamDecl>>& decls, const LoraSpec& lora) {
  if (!lora.active()) return;
  for (std::vector<ParamDecl>& layer : decls) {
    std::vector<ParamDecl> added;
    for (ParamDecl& d : layer) {
      if (adapted(d, lora)) {
        auto [a, b] = factors_of(d, lora);
        added.push_back(std::move(a));
        added.push_back(std::move(b));
      }
      d.frozen = true;
    }
    const auto place = [](const ParamDecl& d) {
      return 2 * int(d.sum_grad.empty()) + int(d.name.back() == 'b');
    };
    std::stable_sort(added.begin(), added.end(),
                     [&](const ParamDecl& a, const ParamDecl& b) { return place(a) < place(b); });
    layer.insert(layer.end(), added.begin(), added.end());
  }
}

void refuse_idle_targets(const std::vector<std::vector<ParamDecl>>& decls, const LoraSpec& lora) {
  std::vector<std::string> names;
  for (const std::vector<ParamDecl>& layer : decls)
    for (const ParamDecl& d : layer)
      if (!d.linear.empty()) names.push_back(matrix_of(d));
  const std::string example = names.empty() ? "*" : names.front();
  for (const std::string& p : lora.targets)
    if (std::none_of(names.begin(), names.end(),
                     [&](const std::string& n) { return matches(bare_pattern(p), n); }))
      bad_request(
          "lora.targets: \"{}\" names no linear layer of the model; expected patterns of names such as "
          "\"{}\" "
          "or \"*.mlp.*\" (embeddings, head, norms, routers and experts have no adapter)",
          p, example);
  if (std::none_of(names.begin(), names.end(), [&](const std::string& n) { return chosen(lora.targets, n); }))
    bad_request("lora.targets chooses no matrix; expected patterns that do, such as \"*\"");
}

int64_t adapter_parameters(const ModelSpec& model, const LoraSpec& lora) {
  const StageRange all{.first = 0, .last = model.layers};
  std::vector<std::vector<ParamDecl>> decls = build_stage(model, all).declare();
  add_adapters(decls, lora);
  int64_t n = 0;
  for (const std::vector<ParamDecl>& layer : decls)
    for (const ParamDecl& d : layer)
      if (d.adapter_scale != 0) n += d.global.numel();
  return n;
}

void Adapters::bind(ParamSet& set, const std::vector<AdaptedPart>& parts) {
  all_.clear();
  for (const AdaptedPart& p : parts) {
    Param *a = set.find(adapter_name(p.name, 'a')), *b = set.find(adapter_name(p.name, 'b'));
    if (!a) continue;
    require(b != nullptr, "an adapter has one factor");
    if (!all_.empty()) {
      const Param& last = *all_.back().a;
      require(last.offset + last.numel() == a->offset,
              "the adapters of a layer are not neighbours in memory");
    }
    scale_ = a->decl.adapter_scale;
    rank_ = a->decl.global[0];
    all_.push_back({p, a, b});
  }
}

Tensor Adapters::all_a(Tensor Param::*field) const {
  const Tensor& first = all_.front().a->*field;
  require(bool(first), "an adapter runs while its weights or gradients are nowhere");
  return Tensor(first.data, {width(), first.shape[1]}, first.dtype);
}

Tensor Adapters::rows_of_b(const One& m, Tensor Param::*field) {
  return (m.b->*field).narrow(0, m.part.first, m.part.rows);
}

void Adapters::scale(Ctx& ctx, const Tensor& h) const {
  if (scale_ != 1) ctx.k.run(ScaledSumArgs{.a = h, .b = {}, .y = h, .alpha = scale_}, ctx.compute);
}

void Adapters::forward(Ctx& ctx, const Tensor& x, const Tensor& y, const Tensor& h) const {
  ctx.k.run(MatmulArgs{.a = x, .b = all_a(&Param::weight), .c = h, .trans_b = true}, ctx.compute);
  scale(ctx, h);
  for (size_t i = 0; i < all_.size(); i++)
    ctx.k.run(MatmulArgs{.a = columns(h, i),
                         .b = rows_of_b(all_[i], &Param::weight),
                         .c = y.narrow(1, all_[i].part.column, all_[i].part.rows),
                         .trans_b = true,
                         .accumulate = true},
              ctx.compute);
}

void Adapters::backward_input(Ctx& ctx, const Tensor& dy, const Tensor& dx, const Tensor& dh) const {
  for (size_t i = 0; i < all_.size(); i++)
    ctx.k.run(MatmulArgs{.a = dy.narrow(1, all_[i].part.column, all_[i].part.rows),
                         .b = rows_of_b(all_[i], &Param::weight),
                         .c = columns(dh, i)},
              ctx.compute);
  scale(ctx, dh);
  ctx.k.run(MatmulArgs{.a = dh, .b = all_a(&Param::weight), .c = dx, .accumulate = true}, ctx.compute);
}

void Adapters::backward_weight(Ctx& ctx, const Tensor& dy, const Tensor& x, const Tensor& h,
                               const Tensor& dh) const {
  bool started = false;  // all or none
  for (const One& m : all_) started = m.a->start_grad();
  ctx.k.run(MatmulArgs{.a = dh, .b = x, .c = all_a(&Param::grad), .trans_a = true, .accumulate = started},
            ctx.compute);
  for (size_t i = 0; i < all_.size(); i++) {
    const One& m = all_[i];
    started = m.b->start_grad();
    // Gradients of rows that this rank does not use are zero.
    if (!started && !m.part.complete) ctx.k.run(ZeroArgs{.y = m.b->grad}, ctx.compute);
    ctx.k.run(MatmulArgs{.a = dy.narrow(1, m.part.column, m.part.rows),
                         .b = columns(h, i),
                         .c = rows_of_b(m, &Param::grad),
                         .trans_a = true,
                         .accumulate = started},
              ctx.compute);
  }
}

}  // namespace trireme
