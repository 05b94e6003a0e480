// The run of a searched layout.
#include "plan/search.h"

namespace trireme {

LayoutSpec searched_keys(const LayoutSpec& l) {
  LayoutSpec keys;
  keys.sequence = true;
  keys.prefetch = l.prefetch;
  keys.bucket_mb = l.bucket_mb;
  keys.cp_overlap = l.cp_overlap;
  keys.reshard_after_forward = l.reshard_after_forward;
  keys.reshard_last = l.reshard_last;
  keys.cut = l.cut;
  keys.ep_buffer = l.ep_buffer;
  keys.ep_load = l.ep_load;
  return keys;
}

RunSpec run_of(const SearchRequest& q, const std::optional<RunSpec>& given) {
  RunSpec run = given.value_or(RunSpec());
  if (!given) {
    run.model = q.model;
    run.model.max_positions = 0;
    run.data.seq_len = q.seq;
    if (q.own) run.train.device = "cuda";  // for its scratch: no processor's is on a device that is searched
    run.precision.compute = "bf16";
    if (q.numbers == NumberType::fp8) run.precision.fp8 = "current";
    run.precision.reduce = q.grad_bytes == 2 ? "bf16" : "f32";
    if (q.grad_stored > 0) run.precision.grads = q.grad_stored == 2 ? "bf16" : "f32";
    run.layout.ep_buffer = q.keys.ep_buffer;
  }
  run.data.seq_len = q.seq, run.model.finish(q.seq);
  return run;
}

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
  // The bound knows these at their defaults alone.
  o.tp_chunks = LayoutSpec().tp_chunks;
  o.interleave = LayoutSpec().interleave;
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
