#include "optim/grad_sync.h"

#include <algorithm>

#include "base/timed.h"

namespace trireme {
namespace {

constexpr size_t kMostPending = 2;  // reductions that hold memory of their own

}  // namespace

GradSync::GradSync(ParamSet& set, FlatState& flat, const GradSyncOptions& options, const SyncGroups& groups,
                   const SyncGroups& experts, CommSet* comms, Device& device, Arena& arena)
    : set_(set),
      flat_(flat),
      options_(options),
      groups_(groups),
      experts_(experts),
      device_(device),
      arena_(arena),
      compute_(device.stream("compute")),
      dp_(alone() ? compute_ : device.stream("dp")),
      gathered_(set.units.size()),
      summands_(set.units.size()),
      slots_(set.units.size()),
      started_(set.units.size()) {
  pending_.reserve(set.units.size());
  if (comms) find_summands(*comms);
}

// Groups are made in the order of the set, so on every rank alike.
void GradSync::find_summands(CommSet& comms) {
  for (size_t u = 0; u < set_.units.size(); u++)
    for (size_t i = set_.units[u].first; i < set_.units[u].last; i++) {
      std::vector<Axis> axes;
      for (Axis a : set_.params[i].decl.sum_grad)
        if (comms.mesh().size(a) > 1) axes.push_back(a);
      if (axes.empty()) continue;
      Communicator* group = &comms.along(axes);
      std::vector<Summands>& all = summands_[u];
      if (!all.empty() && all.back().last == i && all.back().group == group)
        all.back().last++;
      else
        all.push_back({i, i + 1, group});
    }
}

// The memory of a collective that is still under way must not go before it: an error elsewhere has told the
// group that this rank failed, so the stream comes to its end.
GradSync::~GradSync() {
  if (alone()) return;
  try {
    device_.sync(dp_);
  } catch (const std::exception&) {
    // What ended the run is told by whoever caught it.
  }
}

void GradSync::wait(Event e) {
  double begin = now_s();
  device_.wait(compute_, e);
  waited_s_ += now_s() - begin;
}

void GradSync::on_wire() {
  device_.wait(dp_, device_.record(compute_));
}

// ---- weights ----

void GradSync::follow(std::span<const UnitUse> walk) {
  if (!gathers()) return;
  walk_ = walk, at_ = 0;
}

void GradSync::gather(size_t unit) {
  const Unit& u = set_.units[unit];
  Gathered& g = gathered_[unit];
  if (g.full || u.numel == 0 || !gathers(unit)) return;
  g.full = Owned(arena_, Bucket::weights, {u.padded}, flat_.weights.dtype);
  g.waited = false;
  live_++;
  on_wire();
  groups(unit).shard->all_gather({.shard = flat_.own(flat_.weights, set_, u), .full = *g.full}, dp_);
  g.arrived = device_.record(dp_);
}

// A layer that comes next again (the head after its forward, the embedding after its backward) has to let
// its weights go first: meanwhile those of the layer behind it are gathered.
void GradSync::gather_ahead() {
  if (!gathers()) return;
  constexpr size_t kUnitsOfLayer = 2;  // its own, and a shared table
  auto in_use = [&](uint32_t unit) {
    return gathered_[unit].full && (gathered_[unit].waited || (at_ > 0 && walk_[at_ - 1].unit == unit));
  };
  size_t first = at_;
  while (first < walk_.size() && first < at_ + kUnitsOfLayer && in_use(walk_[first].unit)) first++;
  for (size_t i = first; i < walk_.size() && i < first + size_t(options_.prefetch); i++)
    gather(walk_[i].unit);
}

void GradSync::need(size_t unit) {
  if (!gathers()) return;
  require(at_ < walk_.size() && walk_[at_].unit == unit, "a layer runs that the walk did not foresee");
  at_++;
  gather(unit);
  // The next use of this very unit in another pass gathers again, when this one has let it go.
  gather_ahead();
  Gathered& g = gathered_[unit];
  if (g.waited || !g.full) return;
  wait(g.arrived);
  g.waited = true;
  const Unit& u = set_.units[unit];
  for (size_t i = u.first; i < u.last; i++) {
    Param& p = set_.params[i];
    p.weight = p.view(*g.full, p.offset - u.offset);
  }
}

void GradSync::done(size_t unit) {
  if (!gathers()) return;
  require(at_ > 0, "done() before need()");
  for (size_t i = at_; i-- > 0;)
    if (walk_[i].unit == unit) {
      if (walk_[i].release) release(unit);
      break;
    }
  gather_ahead();
}

void GradSync::release(size_t unit) {
  Gathered& g = gathered_[unit];
  if (!g.full) return;
  if (!g.waited) wait(g.arrived);
  g = {};
  live_--;
  const Unit& u = set_.units[unit];
  for (size_t i = u.first; i < u.last; i++) set_.params[i].weight = {};
}

// ---- gradients ----

void GradSync::start_step() {
  waited_s_ = 0;
  bucket_first_ = bucket_last_ = 0;
  std::fill(started_.begin(), started_.end(), 0);
  for (Param& p : set_.params) p.grad_started = false;
}

void GradSync::open(size_t unit) {
  if (!slots(unit) || slots_[unit] || set_.units[unit].numel == 0) return;
  while (pending_.size() >= kMostPending) retire();
  const Unit& u = set_.units[unit];
  Owned& slot = slots_[unit];
  slot = Owned(arena_, Bucket::grads, {u.padded}, flat_.grads.dtype);
  for (size_t i = u.first; i < u.last; i++) {
    Param& p = set_.params[i];
    p.grad = p.view(*slot, p.offset - u.offset);
    p.grad_started = false;
  }
  if (u.padded > u.numel)
    device_.kernels().run(ZeroArgs{.y = slot->narrow(0, u.numel, u.padded - u.numel)}, compute_);
}

// What got no contribution is zero.
void GradSync::zero_unstarted(size_t unit) {
  const Unit& u = set_.units[unit];
  for (size_t i = u.first; i < u.last; i++) {
    Param& p = set_.params[i];
    if (!p.grad_started) device_.kernels().run(ZeroArgs{.y = p.grad}, compute_);
    p.grad_started = true;
  }
}

std::vector<UnitSum> GradSync::sums_of(size_t unit) const {
  std::vector<UnitSum> sums;
  for (const Summands& s : summands_[unit]) {
    const Param &first = set_.params[s.first], &last = set_.params[s.last - 1];
    const int64_t begin = first.offset - set_.units[unit].offset;
    sums.push_back({{begin, begin + last.offset + last.numel() - first.offset}, s.group});
  }
  return sums;
}

// Gradients lie as the parameters do, here and in a slot.
void GradSync::add_summands(size_t unit) {
  for (const Summands& s : summands_[unit]) {
    const Param &first = set_.params[s.first], &last = set_.params[s.last - 1];
    const int64_t numel = last.offset + last.numel() - first.offset;
    const double begin = now_s();
    s.group->all_reduce({.buf = Tensor(first.grad.data, Shape{numel}, first.grad.dtype)}, compute_);
    waited_s_ += now_s() - begin;
  }
}

void GradSync::ready(size_t unit) {
  const Unit& u = set_.units[unit];
  if (u.numel == 0 || groups(unit).alone()) return;
  zero_unstarted(unit);
  add_summands(unit);
  if (norms_ && norms_->batches(u).reduced)
    norms_->add(device_, set_, unit, slots(unit) ? *slots_[unit] : flat_.grads.narrow(0, u.offset, u.padded),
                {}, compute_);
  if (slots(unit)) {
    reduce({.first = unit, .last = unit + 1, .slot = std::move(slots_[unit])});
    for (size_t i = u.first; i < u.last; i++) set_.params[i].grad = {};
    return;
  }
  if (bucket_first_ != bucket_last_ &&  // not a neighbour, or one with other replicas
      (unit + 1 != bucket_first_ || u.experts != set_.units[bucket_first_].experts))
    flush();
  if (bucket_first_ == bucket_last_) bucket_last_ = unit + 1;
  bucket_first_ = unit;
  const Unit& last = set_.units[bucket_last_ - 1];
  int64_t bytes = (last.offset + last.padded - u.offset) * size_of(options_.wire);
  if (options_.zero > 0 || bytes >= options_.bucket_bytes) flush();
}

void GradSync::flush() {
  if (bucket_first_ == bucket_last_) return;
  reduce({.first = bucket_first_, .last = bucket_last_});
  bucket_first_ = bucket_last_ = 0;
}

// The gradients of the units are complete on this rank. Casts, issues, and lets the memory of the cast go.
void GradSync::reduce(Pending p) {
  const Unit &first = set_.units[p.first], &last = set_.units[p.last - 1];
  Tensor buf =
      p.slot ? *p.slot : flat_.grads.narrow(0, first.offset, last.offset + last.padded - first.offset);
  if (options_.wire != buf.dtype) {
    while (pending_.size() >= kMostPending) retire();
    p.wire = Owned(arena_, Bucket::comm, buf.shape, options_.wire);
    device_.kernels().run(CastArgs{.src = buf, .dst = *p.wire}, compute_);
    p.slot.reset();
    buf = *p.wire;
  }
  on_wire();
  const SyncGroups& ranks = groups(p.first);
  if (options_.zero == 0) {
    ranks.replicas->all_reduce({.buf = buf}, dp_);
  } else {
    const Range own = own_part(first, flat_.place_of(first));
    Tensor part = buf.narrow(0, own.begin, own.size());
    ranks.shard->reduce_scatter({.full = buf, .shard = part}, dp_);
    if (ranks.replicas) ranks.replicas->all_reduce({.buf = part}, dp_);
  }
  p.reduced = device_.record(dp_);
  pending_.push_back(std::move(p));
}

void GradSync::retire() {
  Pending p = std::move(pending_.front());
  pending_.erase(pending_.begin());
  wait(p.reduced);
  if (!p.slot && !p.wire) return;  // it was summed in place
  const Tensor& buf = p.wire ? *p.wire : *p.slot;
  const Unit& u = set_.units[p.first];
  if (options_.zero == 0) {
    device_.kernels().run(CastArgs{.src = buf, .dst = flat_.grads.narrow(0, u.offset, buf.numel())},
                          compute_);
    return;
  }
  const Range own = own_part(u, flat_.place_of(u));
  const Tensor sum = buf.narrow(0, own.begin, own.size()), grads = flat_.own(flat_.grads, set_, u);
  if (started_[p.first])
    device_.kernels().run(AddArgs{.a = grads, .b = sum, .y = grads}, compute_);
  else
    device_.kernels().run(CastArgs{.src = sum, .dst = grads}, compute_);
  started_[p.first] = slots(p.first);
}

void GradSync::finish() {
  for (size_t u = 0; u < set_.units.size(); u++)
    if (groups(u).alone()) zero_unstarted(u), add_summands(u);
  flush();
  while (!pending_.empty()) retire();
}

// ---- update ----

void GradSync::updated(size_t unit) {
  const Unit& u = set_.units[unit];
  Communicator* shard = groups(unit).shard;
  if (!shard || gathers(unit) || u.numel == 0) return;
  on_wire();
  shard->all_gather(
      {.shard = flat_.own(flat_.weights, set_, u), .full = flat_.weights.narrow(0, u.offset, u.padded)}, dp_);
}

void GradSync::settle() {
  if (!alone()) wait(device_.record(dp_));
}

void GradSync::spread_weights() {
  for (size_t u = 0; u < set_.units.size(); u++) updated(u);
  settle();
}

void GradSync::abandon() {
  if (alone()) return;
  flush();
  for (Pending& p : pending_) wait(p.reduced);
  pending_.clear();
  for (size_t u = 0; u < slots_.size(); u++) {
    if (!slots_[u]) continue;
    slots_[u].reset();
    for (size_t i = set_.units[u].first; i < set_.units[u].last; i++) set_.params[i].grad = {};
  }
  for (size_t u = 0; u < gathered_.size(); u++) release(u);
  walk_ = {}, at_ = 0;
}

}  // namespace trireme
