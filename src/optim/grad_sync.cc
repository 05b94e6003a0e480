#include "optim/grad_sync.h"

#include <algorithm>

#include "base/timed.h"

namespace trireme {

GradSync::GradSync(const ParamSet& set, const FlatState& flat, const GradSyncOptions& options,
                   const SyncGroups& groups, const SyncGroups& experts, CommSet* comms, Device& device,
                   Arena& arena)
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
      slots_(set.units.size()) {
  pending_.reserve(set.units.size());
  if (comms) find_summands(*comms);
}

// Groups are made in the order of the set, so on every rank alike.
void GradSync::find_summands(CommSet& comms) {
  for (size_t u = 0; u < set_.units.size(); u++)
    for (size_t i = set_.units[u].first; !set_.units[u].frozen && i < set_.units[u].last; i++) {
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

std::vector<UnitShape> GradSync::shapes() const {
  std::vector<UnitShape> all;
  for (size_t u = 0; u < set_.units.size(); u++) {
    const Unit& unit = set_.units[u];
    const bool some = unit.numel > 0;
    const bool trained = some && !unit.frozen;
    const int64_t element = size_of(options_.wire);
    all.push_back({.name = {},
                   .layer = unit.layer,
                   .experts = unit.experts,
                   .gathers = some && gathers(u),
                   .slots = trained && slots(u),
                   .reduces = trained && !groups(u).alone(),
                   .frozen = unit.frozen,
                   .begin = unit.offset * element,
                   .end = (unit.offset + unit.padded) * element});
  }
  return all;
}

void GradSync::run(const Op& op) {
  const auto unit = size_t(op.unit);
  switch (op.kind) {
    case OpKind::gather:
      return gather(unit);
    case OpKind::arrive:
      return arrive(unit);
    case OpKind::release:
      return release(unit);
    case OpKind::open:
      return open(unit);
    case OpKind::sum:
      return sum(unit);
    case OpKind::reduce:
      return reduce(unit, size_t(op.last));
    case OpKind::retire:
      return retire(op.adds);
    case OpKind::spread:
      return spread(unit);
    case OpKind::settle:
      return settle();
    default:
      require(false, "an operation that is not of weights or gradients");
  }
}

// ---- weights ----

void GradSync::gather(size_t unit) {
  const Unit& u = set_.units[unit];
  Gathered& g = gathered_[unit];
  g.full = Owned(arena_, Bucket::weights, {u.padded}, flat_.weights.dtype);
  live_++;
  on_wire();
  groups(unit).shard->all_gather({.shard = flat_.own(flat_.weights, set_, u), .full = *g.full}, dp_);
  g.arrived = device_.record(dp_);
}

void GradSync::arrive(size_t unit) {
  wait(gathered_[unit].arrived);
}

void GradSync::release(size_t unit) {
  Gathered& g = gathered_[unit];
  if (!g.full) return;
  g = {};
  live_--;
}

// ---- gradients ----

void GradSync::open(size_t unit) {
  const Unit& u = set_.units[unit];
  Owned& slot = slots_[unit];
  slot = Owned(arena_, Bucket::grads, {u.padded}, flat_.grads.dtype);
  if (u.padded > u.numel)
    device_.kernels().run(ZeroArgs{.y = slot->narrow(0, u.numel, u.padded - u.numel)}, compute_);
}

// What got no contribution is zero.
void GradSync::zero_unstarted(size_t unit) const {
  const Unit& u = set_.units[unit];
  for (size_t i = u.first; i < u.last; i++)
    if (const Param& p = set_.params[i]; !p.grad_started)
      device_.kernels().run(ZeroArgs{.y = p.grad}, compute_);
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

void GradSync::sum(size_t unit) {
  const Unit& u = set_.units[unit];
  zero_unstarted(unit);
  add_summands(unit);
  if (norms_ && u.numel > 0 && !groups(unit).alone() && norms_->batches(u).reduced)
    norms_->add(device_, set_, unit, slots(unit) ? *slots_[unit] : flat_.grads.narrow(0, u.offset, u.padded),
                {}, compute_);
}

// The gradients of the units are complete on this rank. Casts, issues, and lets the memory of the cast go.
void GradSync::reduce(size_t from, size_t to) {
  const Unit &first = set_.units[from], &last = set_.units[to - 1];
  Pending p{.unit = from};
  if (slots(from)) p.slot = std::move(slots_[from]);
  Tensor buf =
      p.slot ? *p.slot : flat_.grads.narrow(0, first.offset, last.offset + last.padded - first.offset);
  if (options_.wire != buf.dtype) {
    p.wire = Owned(arena_, Bucket::comm, buf.shape, options_.wire);
    device_.kernels().run(CastArgs{.src = buf, .dst = *p.wire}, compute_);
    p.slot.reset();
    buf = *p.wire;
  }
  on_wire();
  const SyncGroups& ranks = groups(from);
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

void GradSync::retire(bool adds) {
  Pending p = std::move(pending_.front());
  pending_.erase(pending_.begin());
  wait(p.reduced);
  if (!p.slot && !p.wire) return;  // it was summed in place
  const Tensor& buf = p.wire ? *p.wire : *p.slot;
  const Unit& u = set_.units[p.unit];
  if (options_.zero == 0) {
    device_.kernels().run(CastArgs{.src = buf, .dst = flat_.grads.narrow(0, u.offset, buf.numel())},
                          compute_);
    return;
  }
  const Range own = own_part(u, flat_.place_of(u));
  const Tensor sum = buf.narrow(0, own.begin, own.size()), grads = flat_.own(flat_.grads, set_, u);
  if (adds)
    device_.kernels().run(AddArgs{.a = grads, .b = sum, .y = grads}, compute_);
  else
    device_.kernels().run(CastArgs{.src = sum, .dst = grads}, compute_);
}

// ---- update ----

void GradSync::spread(size_t unit) {
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
  for (size_t u = 0; u < set_.units.size(); u++) spread(u);
  settle();
}

void GradSync::abandon() {
  if (alone()) return;
  for (Pending& p : pending_) wait(p.reduced);
  pending_.clear();
  for (Owned& slot : slots_) slot.reset();
  for (size_t u = 0; u < gathered_.size(); u++) {
    if (gathered_[u].full) wait(gathered_[u].arrived);
    release(u);
  }
}

void run_unit_op(GradSync& sync, const Op& op, ParamSet& of_layers) {
  sync.run(op);
  const auto unit = size_t(op.unit);
  if (op.kind == OpKind::arrive || op.kind == OpKind::release)
    of_layers.show(unit, &Param::weight, sync.gathered(unit));
  if (op.kind == OpKind::open || (op.kind == OpKind::reduce && sync.slots(unit)))
    of_layers.show(unit, &Param::grad, sync.slot(unit));
  if (op.kind == OpKind::open || op.kind == OpKind::sum)
    of_layers.mark_grads(of_layers.units[unit], op.kind == OpKind::sum);
}

void abandon(GradSync& sync, ParamSet& of_layers) {
  sync.abandon();
  for (size_t u = 0; u < of_layers.units.size(); u++) {
    if (sync.gathers(u)) of_layers.show(u, &Param::weight, {});
    if (sync.slots(u)) of_layers.show(u, &Param::grad, {});
  }
}

}  // namespace trireme
