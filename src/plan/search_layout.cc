// The run of a searched layout.
#include "plan/search.h"

namespace trireme {

RunSpec with_layout(RunSpec run, const SearchLayout& l, bool to_host) {
  LayoutSpec& o = run.layout;
  o.tp = l.tp;
  o.pp = l.pp;
  o.dp = l.dp;
  o.cp = l.cp;
  o.ep = l.ep;
  o.order = std::string(order_of(l.nearest));
  o.sequence = l.tp > 1;
  o.cp_method = "ring";
  o.cp_placement = "zigzag";
  o.zero = l.zero;
  o.shard_group = l.shards;
  o.schedule = std::string(l.schedule), o.schedule_file.clear();
  o.in_flight = 0;
  o.chunks = l.chunks;
  o.recompute = l.again == Again::none ? "none" : l.again == Again::full ? "full" : "selective";
  o.recompute_tensors = LayoutSpec().recompute_tensors, o.recompute_rest = {};
  o.recompute_blocks = o.recompute_limit = 0;
  o.recompute_shard = false;
  // The closed form prices these at their defaults.
  const LayoutSpec plain;
  o.prefetch = plain.prefetch;
  o.cp_overlap = plain.cp_overlap;
  o.tp_chunks = plain.tp_chunks;
  o.interleave = plain.interleave;
  o.reshard_after_forward = plain.reshard_after_forward;
  o.reshard_last = plain.reshard_last;
  o.cut = plain.cut;
  o.offload = l.offload ? "state" : "none";
  o.offload_to = l.offload && to_host ? "host" : LayoutSpec().offload_to;
  if (!l.offload || to_host) o.offload_dir.clear();
  if (!l.offload) o.offload_mb = LayoutSpec().offload_mb;
  run.batch.global = l.global;
  run.batch.micro = l.micro;
  run.own_schedule = {};
  return run;
}

}  // namespace trireme
