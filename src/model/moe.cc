#include "model/moe.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "base/rounding.h"
#include "model/capacity.h"
#include "spec/recompute.h"

namespace trireme {

// ---- the router's matrix ----

Router::Router(std::string name, int64_t experts, int64_t hidden, float init_std, std::vector<Axis> sum_grad,
               bool bias)
    : name_(std::move(name)),
      experts_(experts),
      hidden_(hidden),
      init_std_(init_std),
      sum_grad_(std::move(sum_grad)),
      has_bias_(bias) {}

// No hidden matrix for Muon: its rows are directions to compare a token with, not a map to a hidden layer.
void Router::declare(std::vector<ParamDecl>& decls) const {
  decls.push_back({.name = name_ + ".weight",
                   .global = {experts_, hidden_},
                   .shard = {},
                   .init = {Init::Kind::normal, init_std_},
                   .decay = true,
                   .tied_to = {},
                   .sum_grad = sum_grad_});
  if (has_bias_)
    decls.push_back({.name = name_ + ".bias",
                     .global = {experts_},
                     .shard = {},
                     .init = {Init::Kind::zeros},
                     .decay = false,
                     .tied_to = {},
                     .sum_grad = {},
                     .buffer = true});
}
void Router::bind(ParamSet& set) {
  weight_ = set.find(name_ + ".weight");
  if (has_bias_) bias_ = set.find(name_ + ".bias");
}

Owned Router::forward(Ctx& ctx, const Tensor& x, Saved& saved) const {
  Owned logits = ctx.activation({x.rows(), experts_}, DType::f32);
  ctx.k.run(MatmulArgs{.a = x, .b = weight_->weight, .c = *logits, .trans_b = true}, ctx.compute);
  saved.borrow(this, Kept::x, x);
  return logits;
}

// Matrix products take operands of one type.
void Router::backward_input(Ctx& ctx, const Tensor& dlogits, const Tensor& dx, Saved& saved) const {
  Owned d = ctx.activation(dlogits.shape);
  ctx.k.run(CastArgs{.src = dlogits, .dst = *d}, ctx.compute);
  ctx.k.run(MatmulArgs{.a = *d, .b = weight_->weight, .c = dx, .accumulate = true}, ctx.compute);
  saved.keep(this, Kept::dlogits, std::move(d));
}
void Router::backward_weight(Ctx& ctx, Saved& saved) const {
  if (weight_->decl.frozen) return saved.drop_all(this);
  ctx.k.run(MatmulArgs{.a = saved.get(this, Kept::dlogits),
                       .b = saved.get(this, Kept::x),
                       .c = weight_->grad,
                       .trans_a = true,
                       .accumulate = weight_->start_grad()},
            ctx.compute);
  saved.drop_all(this);
}

// ---- the layer ----

Moe::Moe(const std::string& name, const Sizes& s)
    : name_(name),
      sizes_(s),
      router_(name + ".router", s.experts, s.hidden, s.init_std,
              s.tp.size > 1 ? std::vector<Axis>{Axis::tp} : std::vector<Axis>{}, s.bias),
      experts_(name + ".experts",
               {.experts = s.experts,
                .hidden = s.hidden,
                .ffn = s.ffn,
                .init_std = s.init_std,
                .out_init_std = s.out_init_std},
               s.ep),
      exchange_(name, s.block, s.experts),
      resid_(name + ".resid", s.resid_pdrop, s.tp) {
  if (s.shared_ffn > 0) {
    shared_.emplace(name + ".shared", Activation::swiglu, s.hidden, s.shared_ffn, false, s.init_std,
                    s.out_init_std, 0.0, s.tp);
    shared_->share_input();
  }
  if (s.shared_gate) shared_gate_.emplace(name + ".shared_gate", 1, s.hidden, s.init_std, s.tp.sum_of_rows());
}

void Moe::declare(std::vector<ParamDecl>& decls) const {
  router_.declare(decls);
  experts_.declare(decls);
  if (shared_) shared_->declare(decls);
  if (shared_gate_) shared_gate_->declare(decls);
}
void Moe::bind(ParamSet& set) {
  router_.bind(set);
  experts_.bind(set);
  if (shared_) shared_->bind(set);
  if (shared_gate_) shared_gate_->bind(set);
}

namespace {
// What a router decided, and the rows y that it weighs.
struct Routed {
  Owned logits, ids, weights, y;
};
Owned first_rows(Ctx& ctx, const Tensor& all, int64_t n) {
  Owned rows = ctx.activation({n, all.cols()});
  ctx.k.run(CastArgs{.src = all.narrow(0, 0, n), .dst = *rows}, ctx.compute);
  return rows;
}
void keep_routing(const void* key, Routed r, Saved& saved) {
  saved.keep(key, Kept::logits, std::move(r.logits));
  saved.keep(key, Kept::ids, std::move(r.ids));
  saved.keep(key, Kept::weights, std::move(r.weights));
  saved.keep(key, Kept::y, std::move(r.y));
}
}  // namespace

// The router's own choices, or a recording's.
void Moe::choose(Ctx& ctx, const Tensor& logits, const Tensor& ids, const Tensor& weights) const {
  RouteArgs route{.logits = logits,
                  .bias = router_.bias(),
                  .ids = ids,
                  .weights = weights,
                  .score = score(),
                  .normalise = sizes_.normalise,
                  .group_pairs = sizes_.group_pairs,
                  .groups = sizes_.groups,
                  .top_groups = sizes_.top_groups,
                  .scale = sizes_.scale};
  using Choices = Routing::Choices;
  const Choices from = ctx.training && ctx.routing ? ctx.routing->choices() : Choices::real;
  std::vector<int32_t> host(from == Choices::real ? 0 : size_t(ids.numel()));
  const ContextPlace cp = ctx.groups.cp.place();
  const int64_t part = ctx.batch.seq, seq = part * cp.size;
  const RecordedRouting::Place at{.step = ctx.step,
                                  .first_token = ctx.batch.first_sequence * seq,
                                  .choices = sizes_.experts_per_token,
                                  .part = part,
                                  .seq = seq,
                                  .rows = cp.runs(seq, cp.rank).from(first_row(ids))};
  if (from == Choices::replayed) {
    ctx.routing->recording()->replay(name_, at, host);
    ctx.device.upload(ids, host.data());
    route.given = true;
  }
  ctx.k.run(route, ctx.compute);
  if (from == Choices::recorded) {
    ctx.device.download(host.data(), ids);
    ctx.routing->recording()->record(name_, at, host);
  }
}

// Tokens of a unit here: of what this rank has of a sequence, or of a microbatch.
int64_t Moe::unit_tokens(const Ctx& ctx, int64_t tokens) const {
  return sizes_.balance.unit == BalanceUnit::sequence ? ctx.batch.seq : tokens;
}

// Number of this rank's first row among those of the microbatch, and among those of its units' first.
int64_t Moe::first_row(const Tensor& own) const {
  return sizes_.tp.size > 1 ? sizes_.tp.rank * own.rows() : 0;
}
int64_t Moe::unit_offset(const Tensor& own) const {
  return sizes_.balance.unit == BalanceUnit::sequence ? first_row(own) : 0;
}

// Has each rank that routes tokens of a unit all of them? Else choices must be known of all.
bool Moe::units_are_whole(const Ctx& ctx) const {
  if (ctx.groups.cp.comm || ctx.groups.capacity) return false;
  const bool sequences = sizes_.balance.unit == BalanceUnit::sequence;
  return sizes_.tp.size == 1 || (sequences && ctx.batch.sequences % sizes_.tp.size == 0);
}
// Choices that an expert takes of a unit of so many tokens.
int64_t Moe::capacity(int64_t unit) const {
  return int64_t(
      std::ceil(sizes_.balance.capacity * double(unit * sizes_.experts_per_token) / double(sizes_.experts)));
}

// Of a global unit, the microbatches of all replicas, one behind the other: choices of each expert by the
// replicas before this one. E counts a replica travel, no choices. ids: all of this replica's microbatch;
// on meta none.
std::vector<int64_t> Moe::choices_before(Ctx& ctx, std::span<const int32_t> ids) const {
  Communicator& replicas = *ctx.groups.capacity;
  std::vector<int32_t> own(size_t(sizes_.experts)), all(own.size() * size_t(replicas.size()));
  for (int32_t id : ids) own.at(size_t(id))++;
  Owned mine = ctx.activation({sizes_.experts}, DType::i32),
        each = ctx.activation({replicas.size(), sizes_.experts}, DType::i32);
  ctx.device.upload(*mine, own.data());
  timed(ctx, [&] { replicas.all_gather({.shard = *mine, .full = *each}, ctx.compute); });
  ctx.device.download(all.data(), *each);
  std::vector<int64_t> before(own.size());
  for (size_t i = 0; i < size_t(replicas.rank()) * own.size(); i++) before[i % own.size()] += all[i];
  return before;
}

// ids [n, k] with those marked that a capacity drops, of units that lie on several ranks: 4 k bytes a token
// are gathered over tp, whose ranks route equal parts of the rows, and over cp.
Owned Moe::without_dropped(Ctx& ctx, const Tensor& ids) const {
  const ContextPlace cp = ctx.groups.cp.place();
  const int64_t k = sizes_.experts_per_token, rows = ids.rows() * sizes_.tp.size;
  Owned of_tp, of_cp;
  if (sizes_.tp.size > 1)
    of_tp = ctx.activation({rows, k}, DType::i32), gather_over_tp(ctx, sizes_.tp, ids, *of_tp);
  const Tensor here = of_tp ? *of_tp : ids;
  if (cp.size > 1) {
    of_cp = ctx.activation({cp.size * rows, k}, DType::i32);
    timed(ctx, [&] { ctx.groups.cp.comm->all_gather({.shard = here, .full = *of_cp}, ctx.compute); });
  }
  Owned marked = ctx.activation(ids.shape, DType::i32);
  const Tensor all = of_cp ? *of_cp : here;
  std::vector<int32_t> host(ctx.device.has_data() ? size_t(all.numel()) : 0);
  if (ctx.device.has_data()) ctx.device.download(host.data(), all);
  Communicator* replicas = ctx.groups.capacity;
  std::vector<int64_t> before;
  if (replicas) before = choices_before(ctx, host);
  if (!ctx.device.has_data()) return marked;
  const int64_t seq = ctx.batch.seq * cp.size;
  const int64_t unit = sizes_.balance.unit == BalanceUnit::sequence ? seq : all.rows();
  mark_dropped(host, {.experts = sizes_.experts,
                      .choices = k,
                      .unit = unit,
                      .capacity = capacity(unit * (replicas ? replicas->size() : 1)),
                      .seq = seq,
                      .ranks = cp,
                      .before = std::move(before)});
  ctx.device.upload(*marked, host.data() + (cp.rank * rows + first_row(ids)) * k);
  return marked;
}

// Where the choices' rows lie, kept under `key`.
void Moe::order(Ctx& ctx, const void* key, const Tensor& ids, int64_t experts, Saved& saved) const {
  Owned offsets = ctx.activation({experts + 1}, DType::i32), load = ctx.activation({experts}, DType::i32);
  Owned place = ctx.activation(ids.shape, DType::i32), source = ctx.activation({ids.numel()}, DType::i32);
  RouteOrderArgs order{.ids = ids, .offsets = *offsets, .place = *place, .source = *source, .load = *load};
  const bool routed = key == this && ctx.training, drops = routed && sizes_.balance.capacity > 0;
  Owned marked;
  if (drops && units_are_whole(ctx))
    order.unit = unit_tokens(ctx, ids.rows()), order.capacity = capacity(order.unit);
  else if (drops)
    marked = without_dropped(ctx, ids), order.ids = *marked;
  ctx.k.run(order, ctx.compute);
  if (routed) count(ctx, *load, *offsets);
  saved.keep(key, Kept::offsets, std::move(offsets));
  saved.keep(key, Kept::place, std::move(place));
  saved.keep(key, Kept::source, std::move(source));
}

// ---- load, drops and the losses that even out the load ----

void Moe::count(Ctx& ctx, const Tensor& load, const Tensor& offsets) const {
  if (!ctx.routing || !ctx.device.has_data()) return;
  const size_t experts = size_t(sizes_.experts);
  std::vector<int32_t> host(experts), ends(experts + 1);
  ctx.device.download(host.data(), load);
  ctx.device.download(ends.data(), offsets);
  LayerRouting& r = ctx.routing->of(sizes_.block, ctx.batch.first_sequence).routing;
  r.load.assign(host.begin(), host.end());
  r.dropped = r.choices() - ends.back();
  r.rows.resize(experts);
  for (size_t e = 0; e < experts; e++) r.rows[e] = ends[e + 1] - ends[e];
}

// Choices of each unit's experts, over all ranks that have tokens of it; of global units also those of the
// microbatches before: f is known of what has run (Qiu et al. 2025, 2501.11873, section 3).
std::vector<double> Moe::choices_of_units(Ctx& ctx, const Tensor& choices) const {
  if (ctx.groups.balance) ctx.groups.balance->all_reduce({.buf = choices}, ctx.compute);
  std::vector<float> host(size_t(choices.numel()));
  ctx.device.download(host.data(), choices);
  std::vector<double> all(host.begin(), host.end());
  if (!ctx.routing || !ctx.device.has_data()) return all;
  ctx.routing->of(sizes_.block, ctx.batch.first_sequence).choices = all;
  if (sizes_.balance.unit != BalanceUnit::global) return all;
  for (const auto& [first, m] : ctx.routing->microbatches(sizes_.block))
    for (size_t e = 0; first < ctx.batch.first_sequence && e < all.size(); e++) all[e] += m.choices[e];
  return all;
}

// aux_loss * sum over units of (its tokens / N) E sum_e f_e P_e, and z_loss * the mean of logsumexp^2: N
// tokens of the global batch, f_e = the unit's choices of e / its tokens, P_e = the mean of its shares of e
// (Fedus et al. 2021, 2101.03961, equations 4 to 6; with k choices as Hugging Face's mixtral). A token's
// share p_e has the gradient aux_loss E f_e / N, kept for the backward pass.
void Moe::balance(Ctx& ctx, const Tensor& logits, const Tensor& ids, Saved& saved) const {
  const Balance& b = sizes_.balance;
  if (!ctx.training || !b.losses()) return;
  const int64_t experts = sizes_.experts, unit = unit_tokens(ctx, logits.rows());
  const int64_t units = sizes_.balance.unit == BalanceUnit::sequence ? ctx.batch.sequences : 1;
  Owned gradient = ctx.activation({units, experts}, DType::f32);
  Owned shares = ctx.activation({units, experts}, DType::f32), squares = ctx.activation({units}, DType::f32);
  ctx.k.run(RouteSharesArgs{.logits = logits,
                            .ids = ids,
                            .choices = *gradient,
                            .shares = *shares,
                            .squares = *squares,
                            .score = score(),
                            .unit = unit,
                            .first = unit_offset(logits)},
            ctx.compute);
  const std::vector<double> choices = choices_of_units(ctx, *gradient);
  std::vector<float> p(choices.size()), lse(static_cast<size_t>(units)), d(choices.size());
  ctx.device.download(p.data(), *shares);
  ctx.device.download(lse.data(), *squares);
  double aux = 0, z = 0;
  const double mean = 1 / double(ctx.batch_tokens);
  for (size_t u = 0; u < size_t(units); u++) {
    const auto own = std::span(choices).subspan(u * size_t(experts), size_t(experts));
    const double tokens = std::accumulate(own.begin(), own.end(), 0.0) / double(sizes_.experts_per_token);
    for (size_t e = 0; e < own.size(); e++) {
      const double f = b.aux_loss * double(experts) * own[e] / std::max(1.0, tokens) * mean;
      d[u * own.size() + e] = float(f * ctx.loss_scale);
      aux += f * p[u * own.size() + e];
    }
    z += b.z_loss * lse[u] * mean;
  }
  ctx.device.upload(*gradient, d.data());
  saved.keep(this, Kept::balance, std::move(gradient));
  if (!ctx.routing || !ctx.device.has_data()) return;
  LayerRouting& r = ctx.routing->of(sizes_.block, ctx.batch.first_sequence).routing;
  r.aux_loss = aux, r.z_loss = z;
}

// ---- the passes ----

// What of the microbatch's rows this rank routes, and all of them again.
Tensor Moe::own_rows(const Tensor& rows) const {
  const int64_t n = rows.rows() / sizes_.tp.size;
  return sliced() ? rows.narrow(0, sizes_.tp.rank * n, n) : rows;
}
Owned Moe::all_rows(Ctx& ctx, Owned own) const {
  return sliced() ? gathered_rows(ctx, sizes_.tp, *own) : std::move(own);
}

// The experts' answers to the rows of all choices [R, hidden].
Owned Moe::answers(Ctx& ctx, const Tensor& x, Saved& saved, const std::function<void()>& between) const {
  const Tensor offsets = saved.get(this, Kept::offsets), source = saved.get(this, Kept::source);
  if (ctx.groups.ep)
    return exchange_.forward(ctx, experts_, x, saved.get(this, Kept::place), source, offsets, saved, between);
  Owned xp = ctx.activation({source.numel(), sizes_.hidden});
  ctx.k.run(PermuteRowsArgs{.x = x, .source = source, .y = *xp}, ctx.compute);
  ExpertFfn::Inner in = experts_.inner(ctx, *xp, offsets);
  Owned yp = experts_.outer(ctx, *in.a, offsets);
  saved.keep(this, Kept::xp, std::move(xp));
  saved.keep(this, Kept::u, std::move(in.u));
  saved.keep(this, Kept::a, std::move(in.a));
  if (between) between();
  return yp;
}

// Rows and zeros after them, so that each rank of tp routes the same number; empty if the rows divide
// already. Only inference has such numbers of rows.
Owned Moe::completed(Ctx& ctx, const Tensor& rows) const {
  const int64_t n = rows.rows(), all = round_up(n, sizes_.tp.size);
  if (!sliced() || all == n) return {};
  require(!ctx.backward, "ranks of tp route equal parts of a microbatch");
  Owned out = ctx.activation({all, rows.cols()});
  ctx.k.run(CastArgs{.src = rows, .dst = out->narrow(0, 0, n)}, ctx.compute);
  ctx.k.run(ZeroArgs{.y = out->narrow(0, n, all - n)}, ctx.compute);
  return out;
}

Owned Moe::forward(Ctx& ctx, const Tensor& x, const Tensor& residual, Saved& saved) const {
  const Owned complete = completed(ctx, x);
  const Tensor own = own_rows(complete ? *complete : x);
  const int64_t n = own.rows(), k = sizes_.experts_per_token;
  Owned logits = router_.forward(ctx, own, saved);
  Owned ids = ctx.activation({n, k}, DType::i32), weights = ctx.activation({n, k}, DType::f32);
  choose(ctx, *logits, *ids, *weights);
  order(ctx, this, *ids, sizes_.experts, saved);
  balance(ctx, *logits, *ids, saved);
  const bool drop = resid_.on(ctx);
  Owned base;  // what the answers are added to, where that is computed while rows travel
  Owned yp = answers(ctx, own, saved, [&] {
    if (spread() && shared_) base = add_shared(ctx, x, Owned(), drop ? Tensor() : residual, saved);
  });
  Tensor add = base ? *base : drop ? Tensor() : residual;
  const Owned complete_add = add ? completed(ctx, add) : Owned();
  if (complete_add) add = *complete_add;
  Owned y = ctx.activation({n, sizes_.hidden});
  ctx.k.run(CombineRowsArgs{.x = *yp,
                            .place = saved.get(this, Kept::place),
                            .weights = *weights,
                            .add = add ? own_rows(add) : add,
                            .y = *y},
            ctx.compute);
  base.reset();
  keep_routing(this, {std::move(logits), std::move(ids), std::move(weights), std::move(yp)}, saved);
  if (spread()) {
    y = all_rows(ctx, std::move(y));
    if (complete) y = first_rows(ctx, *y, x.rows());
  } else if (shared_) {
    y = add_shared(ctx, x, std::move(y), Tensor(), saved);
  }
  if (drop) resid_.forward(ctx, *y, *y, residual);
  saved.borrow(this, Kept::x, own);
  return y;
}

// add + shared(x), or add + sigmoid(w . x) shared(x): a gate is the router of one expert. Into y, which is
// what is added to, or, where there is none, into memory of its own.
Owned Moe::add_shared(Ctx& ctx, const Tensor& x, Owned y, const Tensor& add, Saved& saved) const {
  const Tensor to = y ? *y : add;
  if (!shared_gate_) return shared_->forward(ctx, x, to, saved);
  const int64_t n = x.rows();
  Owned s = shared_->forward(ctx, x, Tensor(), saved), logits = shared_gate_->forward(ctx, x, saved);
  Owned ids = ctx.activation({n, 1}, DType::i32), weights = ctx.activation({n, 1}, DType::f32);
  ctx.k.run(RouteArgs{.logits = *logits,
                      .ids = *ids,
                      .weights = *weights,
                      .score = RouteScore::sigmoid,
                      .normalise = false},
            ctx.compute);
  const void* key = &shared_gate_;
  order(ctx, key, *ids, 1, saved);
  if (!y) y = ctx.activation(x.shape);
  ctx.k.run(
      CombineRowsArgs{.x = *s, .place = saved.get(key, Kept::place), .weights = *weights, .add = to, .y = *y},
      ctx.compute);
  keep_routing(key, {std::move(logits), std::move(ids), std::move(weights), std::move(s)}, saved);
  return y;
}

// The gradients of the experts' answers, in place of the answers, and of the router's logits.
Owned Moe::answers_backward(Ctx& ctx, const void* key, const Tensor& dy, const RouteBackwardArgs& how,
                            Saved& saved) const {
  const Tensor y = saved.get(key, Kept::y), ids = saved.get(key, Kept::ids),
               logits = saved.get(key, Kept::logits);
  Owned dweights = ctx.activation(ids.shape, DType::f32), dlogits = ctx.activation(logits.shape, DType::f32);
  ctx.k.run(CombineRowsBackwardArgs{.dy = dy,
                                    .x = y,
                                    .place = saved.get(key, Kept::place),
                                    .source = saved.get(key, Kept::source),
                                    .weights = saved.get(key, Kept::weights),
                                    .dx = y,
                                    .dweights = *dweights},
            ctx.compute);
  RouteBackwardArgs route = how;
  route.logits = logits, route.ids = ids, route.dweights = *dweights, route.dlogits = *dlogits;
  ctx.k.run(route, ctx.compute);
  for (Kept done : {Kept::logits, Kept::ids, Kept::weights, Kept::balance}) saved.drop(key, done);
  return dlogits;
}

// The router's backward pass, with what balancing losses add.
RouteBackwardArgs Moe::balanced(const Ctx& ctx, const Saved& saved) const {
  RouteBackwardArgs route{.score = score(), .normalise = sizes_.normalise, .scale = sizes_.scale};
  if (!saved.has(this, Kept::balance)) return route;
  route.balance = saved.get(this, Kept::balance);
  const Tensor logits = saved.get(this, Kept::logits);
  route.unit = unit_tokens(ctx, logits.rows()), route.first = unit_offset(logits);
  route.z_scale = float(sizes_.balance.z_loss * ctx.loss_scale / double(ctx.batch_tokens));
  return route;
}

// The gradient of the rows of all choices, from that of their answers, kept as "y".
Owned Moe::rows_backward(Ctx& ctx, Saved& saved, const std::function<void()>& between) const {
  if (ctx.groups.ep)
    return exchange_.backward_input(ctx, experts_, saved.get(this, Kept::y), saved.get(this, Kept::x),
                                    saved.get(this, Kept::source), saved, between);
  return experts_.backward_input(ctx, saved.get(this, Kept::y), saved.get(this, Kept::u),
                                 saved.get(this, Kept::offsets));
}

Owned Moe::backward_input(Ctx& ctx, const Tensor& dy, Saved& saved) const {
  Owned dropped = resid_.backward(ctx, dy);
  const Tensor d = dropped ? *dropped : dy;
  Owned dlogits = answers_backward(ctx, this, own_rows(d), balanced(ctx, saved), saved);
  Owned shared;  // its part of dx, where that is computed while rows travel
  Owned dxp = rows_backward(ctx, saved, [&] {
    if (shared_) shared = shared_backward(ctx, d, Tensor(), saved);
  });
  if (shared_ && spread() && !shared) shared = shared_backward(ctx, d, Tensor(), saved);
  const Tensor place = saved.get(this, Kept::place);
  Owned dx = ctx.activation({place.rows(), sizes_.hidden});
  ctx.k.run(CombineRowsArgs{.x = *dxp, .place = place, .y = *dx}, ctx.compute);
  dxp.reset();
  router_.backward_input(ctx, *dlogits, *dx, saved);
  dlogits.reset();
  dx = all_rows(ctx, std::move(dx));
  if (shared_ && !shared) shared = shared_backward(ctx, d, *dx, saved);
  if (shared_) ctx.k.run(AddArgs{.a = *dx, .b = *shared, .y = *dx}, ctx.compute);
  shared.reset();
  if (dropped) saved.keep(this, Kept::dropped, std::move(dropped));
  return dx;
}

// The shared expert's part of dx. That of its gate is added to dx, or, where there is none yet, to what is
// returned.
Owned Moe::shared_backward(Ctx& ctx, const Tensor& dy, const Tensor& dx, Saved& saved) const {
  if (!shared_gate_) return shared_->backward_input(ctx, dy, saved);
  const void* key = &shared_gate_;
  Owned dlogits = answers_backward(ctx, key, dy, {.score = RouteScore::sigmoid, .normalise = false}, saved);
  if (dx) {
    shared_gate_->backward_input(ctx, *dlogits, dx, saved);
    return shared_->backward_input(ctx, saved.get(key, Kept::y), saved);
  }
  Owned part = shared_->backward_input(ctx, saved.get(key, Kept::y), saved);
  shared_gate_->backward_input(ctx, *dlogits, *part, saved);
  return part;
}

// With ep the exchange keeps the experts' tensors, else this layer does.
void Moe::let_go(const Recompute& r, Saved& saved) const {
  exchange_.let_go(r, saved);
  if (r.has("u")) saved.let_go(this, Kept::u);
  if (r.has("a")) saved.let_go(this, Kept::a);
  if (shared_) shared_->let_go(r, saved);
}
void Moe::again(Ctx& ctx, const Tensor& x, Saved& saved) const {
  if (ctx.groups.ep)
    exchange_.again(ctx, experts_, saved);
  else
    experts_.again(ctx, this, saved.get(this, Kept::xp), saved.get(this, Kept::offsets), saved);
  if (shared_) shared_->again(ctx, x, saved);
}

// After the first pass "y" and "u" hold the gradients of what the forward pass kept there.
void Moe::backward_weight(Ctx& ctx, Saved& saved) const {
  if (ctx.groups.ep)
    exchange_.backward_weight(ctx, experts_, saved.get(this, Kept::y), saved.get(this, Kept::x),
                              saved.get(this, Kept::source), saved);
  else
    experts_.backward_weight(ctx, saved.get(this, Kept::y), saved.get(this, Kept::a),
                             saved.get(this, Kept::u), saved.get(this, Kept::xp),
                             saved.get(this, Kept::offsets));
  router_.backward_weight(ctx, saved);
  if (shared_) shared_->backward_weight(ctx, saved);
  if (shared_gate_) shared_gate_->backward_weight(ctx, saved), saved.drop_all(&shared_gate_);
  saved.drop_all(this);
}

}  // namespace trireme
