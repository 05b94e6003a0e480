#include "ranks_run.h"

#include "base/json.h"

namespace trireme::test {

RunSpec ranks_run(const fs::path& folder, const RanksLayout& l, int64_t steps, const char* compute) {
  RunSpec r = tiny_run(folder, steps);
  r.batch.micro = l.micro;
  r.layout.dp = l.dp, r.layout.zero = l.zero, r.layout.shard_group = l.group, r.layout.tp = l.tp;
  r.layout.cp = l.cp, r.layout.cp_placement = l.placement, r.layout.cp_method = l.method;
  r.layout.pp = l.pp, r.layout.schedule = l.schedule, r.layout.chunks = l.chunks;
  r.model.heads = 12, r.model.kv_heads = 1, r.model.head_dim = 4, r.model.ffn = 60;
  r.precision.compute = compute, r.precision.grads = "f32";
  r.precision.reduce = r.precision.compute == "bf16" ? "bf16" : "f32";
  r.train.check_every = 3;
  return r;
}

Outcome numbers_of(const fs::path& run_dir) {
  Outcome o = outcome_of(run_dir);
  for (std::string& line : o.metrics) {
    auto m = nlohmann::json::parse(line);
    m.erase("peak_bytes"), m.erase("at_peak_bytes");
    line = m.dump();
  }
  return o;
}

}  // namespace trireme::test
