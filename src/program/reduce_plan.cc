#include "program/lower.h"

namespace trireme {

ReducePlan::ReducePlan(const RankShape& shape, const ShardPolicy& policy, std::vector<Op>& out)
    : shape_(shape), policy_(policy), out_(out), open_(shape.units.size()), summed_(shape.units.size()) {}

void ReducePlan::open(uint32_t unit) {
  if (!shape_.units[unit].slots || open_[unit]) return;
  retire_down();
  open_[unit] = 1;
  out_.push_back({.kind = OpKind::open, .layer = int32_t(shape_.units[unit].layer), .unit = int32_t(unit)});
}

void ReducePlan::ready(uint32_t unit) {
  const UnitShape& u = shape_.units[unit];
  if (!u.reduces) return;
  out_.push_back({.kind = OpKind::sum, .layer = int32_t(u.layer), .unit = int32_t(unit)});
  if (u.slots) {
    open_[unit] = 0;
    return reduce(unit, unit + 1);
  }
  if (bucket_first_ != bucket_last_ &&  // not a neighbour, or one with other replicas
      (unit + 1 != bucket_first_ || u.experts != shape_.units[bucket_first_].experts))
    flush();
  if (bucket_first_ == bucket_last_) bucket_last_ = unit + 1;
  bucket_first_ = unit;
  const int64_t bytes = shape_.units[bucket_last_ - 1].end - u.begin;
  if (policy_.zero > 0 || bytes >= policy_.bucket_bytes) flush();
}

void ReducePlan::stage(uint32_t first, uint32_t last) {
  if (first < last) reduce(first, last);
}

void ReducePlan::flush() {
  if (bucket_first_ == bucket_last_) return;
  reduce(bucket_first_, bucket_last_);
  bucket_first_ = bucket_last_ = 0;
}

// A cast needs a separate buffer, so an earlier one is waited for first.
void ReducePlan::reduce(uint32_t first, uint32_t last) {
  if (policy_.casts && !policy_.by_stage) retire_down();
  pending_.push_back({first, int32_t(out_.size())});
  out_.push_back({.kind = OpKind::reduce,
                  .layer = int32_t(shape_.units[first].layer),
                  .unit = int32_t(first),
                  .last = int32_t(last)});
}

void ReducePlan::retire() {
  const Pending p = pending_.front();
  pending_.erase(pending_.begin());
  const UnitShape& u = shape_.units[p.first];
  out_.push_back({.kind = OpKind::retire,
                  .adds = u.slots && summed_[p.first],
                  .layer = int32_t(u.layer),
                  .unit = int32_t(p.first),
                  .last = out_[size_t(p.op)].last,
                  .after = p.op});
  summed_[p.first] = 1;
}

void ReducePlan::finish() {
  for (size_t u = 0; u < shape_.units.size(); u++)
    if (!shape_.units[u].reduces && !shape_.units[u].frozen)
      out_.push_back({.kind = OpKind::sum, .layer = int32_t(shape_.units[u].layer), .unit = int32_t(u)});
  flush();
  while (!pending_.empty()) retire();
}

}  // namespace trireme
