#include "model/expert_exchange.h"

#include "model/tensor_parallel.h"
#include "spec/recompute.h"

namespace trireme {
namespace {

int64_t capacity(const Ctx& ctx) {
  return ctx.groups.expert_rows;
}
// values: empty, or n.
Owned as_tensor(Ctx& ctx, const std::vector<int32_t>& values, int64_t n) {
  Owned t = ctx.activation({n}, DType::i32);
  ctx.device.upload(*t, values.data());
  return t;
}

// For its life no other pass runs. The number of further rounds depends on the routers' choices. These must
// change neither the order of ranks' collectives nor the memory that is in use at once.
class OnePass {
 public:
  explicit OnePass(Ctx& ctx) : ctx_(ctx), other_(ctx.groups.other_pass) {
    static const std::function<void()> kNone = [] {};
    if (other_) ctx_.groups.other_pass = &kNone;  // collectives stay on their stream
  }
  OnePass(const OnePass&) = delete;
  ~OnePass() { ctx_.groups.other_pass = other_; }

 private:
  Ctx& ctx_;
  const std::function<void()>* other_;
};

}  // namespace

// ---- where rows go ----

// All ranks' offsets, kept as "counts" [ep, E + 1]; on meta rows are as a recording has them, else balanced.
RowPlan ExpertExchange::agree(Ctx& ctx, const Tensor& offsets, int64_t rows, Saved& saved) const {
  Communicator& ep = *ctx.groups.ep;
  Owned counts = ctx.activation({ep.size(), experts_ + 1}, DType::i32);
  collective(ctx, ctx.groups.ep_stream,
             [&](Stream s) { ep.all_gather({.shard = offsets, .full = *counts}, s); });
  saved.keep(this, Kept::counts, std::move(counts));
  const RowPlan plan = agreed(ctx, rows, saved);
  if (!ctx.device.has_data()) return plan;
  std::vector<int32_t> mine(size_t(experts_) + 1);
  ctx.device.download(mine.data(), offsets);
  if (plan.sent() != mine.back())
    run_failed("{}, rank {} of ep: {} rows are to be sent, and the ranks agreed on {}", name_, ep.rank(),
               mine.back(), plan.sent());
  count(ctx, plan);
  return plan;
}

RowPlan ExpertExchange::agreed(Ctx& ctx, int64_t rows, const Saved& saved) const {
  const Communicator& ep = *ctx.groups.ep;
  if (!ctx.device.has_data()) {
    std::vector<int64_t> counts;
    if (ctx.training && ctx.routing) counts = ctx.routing->expected(block_, ctx.batch.first_sequence);
    if (counts.empty()) counts = RowPlan::balanced(rows, ep.size(), experts_);
    return RowPlan(std::move(counts), ep.size(), ep.rank(), capacity(ctx));
  }
  std::vector<int32_t> offsets(size_t(ep.size() * (experts_ + 1)));
  ctx.device.download(offsets.data(), saved.get(this, Kept::counts));
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < ep.size(); r++)
    for (int64_t e = 0; e < experts_; e++) {
      const size_t at = size_t(r * (experts_ + 1) + e);
      counts.push_back(offsets[at + 1] - offsets[at]);
    }
  return RowPlan(std::move(counts), ep.size(), ep.rank(), capacity(ctx));
}

// Tokens are conserved: rows sent, which each rank knows of its own choices, and rows computed, which owners
// count in the tables that their experts run by, are added over all ranks apart, and compared. What a row
// holds when it has come is the communicator's to answer for (comm/wrap/checked.h).
void ExpertExchange::count(Ctx& ctx, const RowPlan& plan) const {
  if (!ctx.training || !ctx.routing) return;
  LayerRouting& r = ctx.routing->of(block_, ctx.batch.first_sequence).routing;
  r.sent = plan.sent(), r.computed = 0, r.rounds = plan.rounds();
  if (!ctx.device.has_data()) {
    r.computed = plan.received();
    return;
  }
  for (int64_t t = 0; t < plan.rounds(); t++) r.computed += plan.round(t).computed();
}

void ExpertExchange::reorder(Ctx& ctx, const RowPlan& plan, const Tensor& place, const Tensor& source) const {
  if (plan.rounds() == 1 || !ctx.device.has_data()) return;  // they lie so already
  const std::vector<int32_t> to = plan.sending();
  std::vector<int32_t> places(size_t(place.numel())), sources(size_t(source.numel()), -1);
  ctx.device.download(places.data(), place);
  for (size_t i = 0; i < places.size(); i++) {
    if (places[i] < 0) continue;
    places[i] = to.at(size_t(places[i]));
    sources[size_t(places[i])] = int32_t(i);
  }
  ctx.device.upload(place, places.data());
  ctx.device.upload(source, sources.data());
}

ExpertExchange::Tables ExpertExchange::tables(Ctx& ctx, const RowPlan::Round& r) const {
  return {as_tensor(ctx, r.order, r.rows), as_tensor(ctx, r.back, r.rows),
          as_tensor(ctx, r.offsets, int64_t(r.offsets.size()))};
}

// ---- rows on their way ----

Owned ExpertExchange::sent_rows(Ctx& ctx, const Tensor& x, const Tensor& source) const {
  Owned xs = ctx.activation({source.numel(), x.cols()});
  ctx.k.run(PermuteRowsArgs{.x = x, .source = source, .y = *xs}, ctx.compute);
  return xs;
}

// The round's rows to their owners, behind what compute was given, beside what it is given next.
Event ExpertExchange::start(Ctx& ctx, const Tensor& rows, const Tensor& arrived,
                            const RowPlan::Round& r) const {
  const Stream s = ctx.groups.ep_stream;
  ctx.device.wait(s, ctx.device.record(ctx.compute));
  ctx.groups.ep->all_to_all({.send = rows.narrow(0, r.first, r.sent()),
                             .recv = arrived.narrow(0, 0, r.received()),
                             .send_rows = r.send,
                             .recv_rows = r.receive},
                            s);
  return ctx.device.record(s);
}

// By expert, zeros behind.
Owned ExpertExchange::sorted(Ctx& ctx, const Tensor& arrived, const Tensor& order) const {
  Owned x = ctx.activation(arrived.shape);
  ctx.k.run(PermuteRowsArgs{.x = arrived, .source = order, .y = *x}, ctx.compute);
  return x;
}

Owned ExpertExchange::fetch(Ctx& ctx, const Tensor& rows, const RowPlan::Round& r,
                            const Tensor& order) const {
  Owned arrived = ctx.activation({capacity(ctx), rows.cols()});
  wait_for_tp(ctx, start(ctx, rows, *arrived, r));
  return sorted(ctx, *arrived, order);
}

// What was computed of the round's rows goes home, into `rows`.
void ExpertExchange::give_back(Ctx& ctx, Owned by_expert, const RowPlan::Round& r, const Tensor& back,
                               const Tensor& rows) const {
  Owned y = ctx.activation(by_expert->shape);
  ctx.k.run(CombineRowsArgs{.x = *by_expert, .place = back.view({back.numel(), 1}), .y = *y}, ctx.compute);
  by_expert.reset();
  collective(ctx, ctx.groups.ep_stream, [&](Stream s) {
    ctx.groups.ep->all_to_all({.send = y->narrow(0, 0, r.received()),
                               .recv = rows.narrow(0, r.first, r.sent()),
                               .send_rows = r.receive,
                               .recv_rows = r.send},
                              s);
  });
}

// ---- the passes ----

Owned ExpertExchange::forward(Ctx& ctx, const ExpertFfn& ffn, const Tensor& x, const Tensor& place,
                              const Tensor& source, const Tensor& offsets, Saved& saved,
                              const std::function<void()>& between) const {
  const RowPlan plan = agree(ctx, offsets, source.numel(), saved);
  reorder(ctx, plan, place, source);
  const RowPlan::Round first = plan.round(0, ctx.device.has_data());
  Tables t = tables(ctx, first);
  Owned xs = sent_rows(ctx, x, source), arrived = ctx.activation({capacity(ctx), x.cols()});
  const Event came = start(ctx, *xs, *arrived, first);
  between();
  wait_for_tp(ctx, came);
  Owned own = sorted(ctx, *arrived, *t.order);
  arrived.reset();
  ExpertFfn::Inner in = ffn.inner(ctx, *own, *t.offsets);
  Owned answers = ctx.activation(xs->shape);
  give_back(ctx, ffn.outer(ctx, *in.a, *t.offsets), first, *t.back, *answers);
  book_room(ctx, ffn, *own, *in.u, *in.a, *t.offsets, 0, false);
  further_forward(ctx, ffn, plan, *xs, *answers);
  saved.keep(this, Kept::x, std::move(own));
  saved.keep(this, Kept::u, std::move(in.u));
  saved.keep(this, Kept::a, std::move(in.a));
  saved.keep(this, Kept::order, std::move(t.order));
  saved.keep(this, Kept::back, std::move(t.back));
  saved.keep(this, Kept::offsets, std::move(t.offsets));
  return answers;
}

void ExpertExchange::let_go(const Recompute& r, Saved& saved) const {
  if (r.has("u")) saved.let_go(this, Kept::u);
  if (r.has("a")) saved.let_go(this, Kept::a);
}
void ExpertExchange::again(Ctx& ctx, const ExpertFfn& ffn, Saved& saved) const {
  ffn.again(ctx, this, saved.get(this, Kept::x), saved.get(this, Kept::offsets), saved);
}

Owned ExpertExchange::backward_input(Ctx& ctx, const ExpertFfn& ffn, const Tensor& dy, const Tensor& x,
                                     const Tensor& source, Saved& saved,
                                     const std::function<void()>& between) const {
  const RowPlan plan = agreed(ctx, source.numel(), saved);
  const RowPlan::Round first = plan.round(0, ctx.device.has_data());
  const Tensor offsets = saved.get(this, Kept::offsets), u = saved.get(this, Kept::u);
  Owned arrived = ctx.activation({capacity(ctx), dy.cols()});
  const Event came = start(ctx, dy, *arrived, first);
  between();
  wait_for_tp(ctx, came);
  Owned own = sorted(ctx, *arrived, saved.get(this, Kept::order));
  arrived.reset();
  Owned dx = ctx.activation(dy.shape);
  give_back(ctx, ffn.backward_input(ctx, *own, u, offsets), first, saved.get(this, Kept::back), *dx);
  book_room(ctx, ffn, *own, u, saved.get(this, Kept::a), offsets, dy.rows(), false);
  further_backward(ctx, ffn, plan, x, source, dy, &*dx);
  saved.keep(this, Kept::dy, std::move(own));
  saved.drop(this, Kept::order), saved.drop(this, Kept::back);
  return dx;
}

void ExpertExchange::backward_weight(Ctx& ctx, const ExpertFfn& ffn, const Tensor& dy, const Tensor& x,
                                     const Tensor& source, Saved& saved) const {
  const RowPlan plan = agreed(ctx, source.numel(), saved);
  const Tensor offsets = saved.get(this, Kept::offsets), u = saved.get(this, Kept::u),
               a = saved.get(this, Kept::a), own = saved.get(this, Kept::x);
  ffn.backward_weight(ctx, saved.get(this, Kept::dy), a, u, own, offsets);
  book_room(ctx, ffn, own, u, a, offsets, dy.rows(), true);
  further_backward(ctx, ffn, plan, x, source, dy, nullptr);
  saved.drop_all(this);
}

// ---- further rounds ----

void ExpertExchange::further_forward(Ctx& ctx, const ExpertFfn& ffn, const RowPlan& plan, const Tensor& xs,
                                     const Tensor& answers) const {
  const OnePass alone(ctx);
  for (int64_t i = 1; i < plan.rounds(); i++) {
    const RowPlan::Round r = plan.round(i, ctx.device.has_data());
    const Tables t = tables(ctx, r);
    Owned own = fetch(ctx, xs, r, *t.order);
    const ExpertFfn::Inner in = ffn.inner(ctx, *own, *t.offsets);
    give_back(ctx, ffn.outer(ctx, *in.a, *t.offsets), r, *t.back, answers);
  }
}

// What the forward pass did not keep is fetched and computed again, for the gradient of the rows (into dx)
// and once more for that of the weights (dx = null), whose buffers are open then.
void ExpertExchange::further_backward(Ctx& ctx, const ExpertFfn& ffn, const RowPlan& plan, const Tensor& x,
                                      const Tensor& source, const Tensor& dy, const Tensor* dx) const {
  if (plan.rounds() == 1) return;
  const OnePass alone(ctx);
  Owned xs = sent_rows(ctx, x, source);
  for (int64_t i = 1; i < plan.rounds(); i++) {
    const RowPlan::Round r = plan.round(i, ctx.device.has_data());
    const Tables t = tables(ctx, r);
    Owned own = fetch(ctx, *xs, r, *t.order), down = fetch(ctx, dy, r, *t.order);
    ExpertFfn::Inner in = ffn.inner(ctx, *own, *t.offsets);
    Owned drows = ffn.backward_input(ctx, *down, *in.u, *t.offsets);
    if (dx)
      give_back(ctx, std::move(drows), r, *t.back, *dx);
    else
      ffn.backward_weight(ctx, *down, *in.a, *in.u, *own, *t.offsets);
  }
}

// Room for all that a further round takes, whether there is one or not: so that a step's memory does not
// depend on what routers choose. rows: of this rank that travel again.
void ExpertExchange::book_room(Ctx& ctx, const ExpertFfn& ffn, const Tensor& x, const Tensor& u,
                               const Tensor& a, const Tensor& offsets, int64_t rows, bool weight) const {
  constexpr int64_t kPieces = 16;  // each begins at a multiple of Arena::kAlign
  const int64_t tables = (2 * capacity(ctx) + offsets.numel()) * size_of(DType::i32);
  const int64_t of_rows = rows * x.cols() * size_of(ctx.dtype);
  const int64_t scratch = std::max(ffn.scratch(ctx, x, u, a, offsets, false),
                                   weight ? ffn.scratch(ctx, x, u, a, offsets, true) : 0);
  ctx.activation(
      {tables + of_rows + 6 * x.bytes() + u.bytes() + 2 * a.bytes() + scratch + kPieces * Arena::kAlign},
      DType::u8);
}

}  // namespace trireme
