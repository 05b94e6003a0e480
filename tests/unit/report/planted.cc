#include "planted.h"

#include <fmt/format.h>

#include <algorithm>

#include "forecast/forecast.h"
#include "report/price_plan.h"
#include "spec/run_schedule.h"
#include "trace/chrome_trace.h"
#include "trace/metrics.h"

namespace trireme::test {
namespace {

RunSpec planted_run(const fs::path& folder, const Plant& p) {
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = 256;
  r.model.layers = 3;
  r.model.hidden = 64;
  r.model.heads = 4;
  r.model.kv_heads = 4;
  r.model.ffn = 128;
  r.data.seq_len = 32;
  r.batch = {.global = p.global, .micro = p.micro};
  r.precision.compute = "f32";
  r.precision.grads = "f32";
  r.precision.reduce = "f32";
  r.layout.dp = p.ranks;
  r.train.steps = p.steps;
  r.train.threads = 1;
  r.train.dir = folder.string();
  r.train.checkpoint_every.count = p.save_every;
  r.layout.bucket_mb = 0.05;
  r.model.finish(r.data.seq_len);
  return r;
}

// The spans of one rank's step; returns when it has come to the all_reduce.
class RankStep {
 public:
  RankStep(const Plant& p, int rank, int64_t step, int64_t begin)
      : plant_(p), rank_(rank), step_(step), at_(begin) {
    spans_.push_back(of(SpanKind::step, "step", "", begin));
    const int64_t count = p.global / p.ranks / p.micro;
    for (int64_t mb = 0; mb < count; mb++)
      for (const char* action : {"F", "B"}) pass(action, int32_t(mb), mb == 0);
  }
  int64_t at() const { return at_; }
  std::vector<Span> finish(int64_t met) {
    const int64_t moved = int64_t(plant_.comm_ms * 1e6);
    if (plant_.ranks > 1) {
      Span call = of(SpanKind::comm, "all_reduce", "norm", at_);
      call.group = "dp";
      call.algorithm = "ordered";
      call.lane = "dp";
      call.wire_bytes = 1 << 20;
      call.met_ns = met;
      call.end_ns = met + moved;
      spans_.push_back(call);
      at_ = call.end_ns;
    }
    action("Step", -1, [&] { op("adamw", "Step", -1); });
    spans_[0].end_ns = at_;
    return std::move(spans_);
  }

 private:
  Span of(SpanKind kind, std::string_view name, std::string_view action, int64_t begin) const {
    Span s;
    s.kind = kind;
    s.rank = rank_;
    s.step = step_;
    s.name = name;
    s.action = action;
    s.begin_ns = s.end_ns = begin;
    s.memory = {1 << 20, 1 << 20, 2 << 20, 3 << 20, 0, 1 << 16};
    return s;
  }
  void op(std::string_view name, std::string_view action, int32_t mb) {
    at_ += int64_t(plant_.gap_us * 1e3);
    Span s = of(SpanKind::op, name, action, at_);
    s.microbatch = mb;
    s.layer = "blocks.0.mlp";
    s.cost = {1e6, 4096, 4096};
    const bool slow = rank_ == int(plant_.ranks) - 1;
    at_ = s.end_ns = at_ + int64_t(plant_.op_us * 1e3 * (slow ? plant_.slow : 1));
    spans_.push_back(s);
  }
  template <class Body>
  void action(std::string_view name, int32_t mb, const Body& body) {
    Span s = of(SpanKind::action, name, name, at_);
    s.microbatch = mb;
    const size_t place = spans_.size();
    spans_.push_back(s);
    body();
    spans_[place].end_ns = at_;
  }
  void pass(std::string_view name, int32_t mb, bool first) {
    action(name, mb, [&] {
      if (name == "F" && first) {
        Span wait = of(SpanKind::wait, "data", name, at_);
        wait.microbatch = mb;
        at_ = wait.end_ns = at_ + int64_t(plant_.data_s * 1e9);
        spans_.push_back(wait);
      }
      for (int i = 0; i < plant_.ops; i++) op("matmul", name, mb);
    });
  }

  const Plant& plant_;
  int32_t rank_;
  int64_t step_, at_;
  std::vector<Span> spans_;
};

// Traces steps 20 to 23; returns seconds of one.
double write_trace(const fs::path& folder, const Plant& p) {
  ChromeTraceFile file(folder / "trace.json", {{"machine", "planted"}, {"peak_flops", "1000000000000"}});
  int64_t begin = 1'000'000;
  double step_s = 0;
  for (int64_t step = 20; step < 24; step++) {
    std::vector<RankStep> ranks;
    int64_t met = 0, end = 0;
    for (int r = 0; r < int(p.ranks); r++) {
      ranks.emplace_back(p, r, step, begin);
      met = std::max(met, ranks.back().at());
    }
    std::vector<Span> all;
    for (int r = 0; r < int(p.ranks); r++) {
      std::vector<Span> one = ranks[size_t(r)].finish(met + 20'000);
      end = std::max(end, one[0].end_ns);
      if (r == int(p.ranks) - 1)
        for (Span& s : one)
          for (int64_t* t : {&s.begin_ns, &s.end_ns, &s.met_ns}) *t += int64_t(p.clock_skew_s * 1e9);
      all.insert(all.end(), one.begin(), one.end());
    }
    file.write(all);
    step_s = double(end - begin) * 1e-9;
    begin = end + 100'000;
  }
  return step_s;
}

void write_lines(const fs::path& folder, const Plant& p, double step_s) {
  MetricsFile metrics(folder / "metrics.jsonl", 0);
  double time = 1.7e9;
  append_line(folder / "events.jsonl",
              fmt::format("{{\"event\":\"start\",\"time\":{:.3f},\"step\":0,\"process_s\":1.5,"
                          "\"nodes\":1,\"world\":{},\"lost_s\":0,"
                          "\"machine\":{{\"cores\":8}},\"launch\":{{\"threads\":{}}}}}",
                          time, p.ranks, p.threads));
  size_t clock = 0;
  for (int64_t step = 1; step <= p.steps; step++) {
    StepMetrics m;
    const double factor = (step > p.steps / 2 ? p.late_factor : 1) * (step <= 2 ? 1.5 : 1);
    m.step = step;
    m.loss = 5 - 0.01 * double(step);
    m.grad_norm = 1;
    m.lr = 1e-3;
    m.tokens = 512;
    m.step_s = step_s * factor;
    m.tokens_per_s = 512 / m.step_s;
    m.mfu = m.hfu = 0.4 / factor;
    if (p.recomputes) m.hfu = m.mfu * 1.3;
    m.data_s = p.data_s;
    m.forward_s = m.step_s * 0.35;
    m.backward_s = m.step_s * 0.55;
    m.update_s = m.step_s * 0.05;
    m.norm_s = 0.01 * m.step_s,
    m.other_s = m.step_s - m.data_s - m.forward_s - m.backward_s - m.update_s - m.norm_s;
    if (p.ranks > 1) m.comm_s = p.comm_ms * 1e-3;
    m.peak = {1 << 20, 1 << 20, 2 << 20, 3 << 20, 0, 1 << 16};
    m.peak_total = 7 << 20;
    if (step > 1 && (step - 1) % p.save_every == 0) m.checkpoint_stall_s = p.stall_s;
    m.checkpoint_write_s = p.write_s;
    metrics.write(m);
    time += m.step_s + m.checkpoint_stall_s.value_or(0) + 2e-4;
    if (step % 15 == 3 && clock < p.clocks.size())
      append_line(
          folder / "events.jsonl",
          fmt::format("{{\"event\":\"clock\",\"time\":{:.3f},\"step\":{},\"clock\":{},\"others_cpu\":{}}}",
                      time, step, p.clocks[clock++], p.others_cpu));
  }
  append_line(folder / "events.jsonl",
              fmt::format("{{\"event\":\"end\",\"time\":{:.3f},\"step\":{}}}", time, p.steps));
}

}  // namespace

ClusterSpec quiet_machine() {
  ClusterSpec c;
  c.name = "quiet";
  c.source = "made up";
  c.threads = 1;
  c.peak = {.f32 = 1e9};
  c.memory_bandwidth = 1e12;
  c.memory_bytes = int64_t(1) << 34;
  c.intra_node = {.latency = 1e-6, .bandwidth = 1e10};
  return c;
}

ReportInput planted(const fs::path& folder, const Plant& p, const std::optional<ClusterSpec>& cluster) {
  fs::create_directories(folder / "checkpoints" / "step-00000060");
  write_text_atomic(folder / "checkpoints" / "step-00000060" / "manifest.json", "{}");
  write_text_atomic(folder / "checkpoints" / "step-00000060" / "rank-0",
                    std::string(size_t(p.checkpoint_bytes), 'x'));
  write_text_atomic(folder / "plan.toml", save_run(planted_run(folder, p)));
  write_text_atomic(folder / "plan.toml", save_run(load_run(folder / "plan.toml", p.sets)));
  write_lines(folder, p, write_trace(folder, p));
  if (cluster) {
    const RunSpec run = load_run(folder / "plan.toml");
    write_text_atomic(folder / "forecast.json", to_json(run, forecast(run, schedule_of(run), *cluster, 1)));
  }
  ReportInput in = read_report_input(folder);
  in.cluster = cluster;
  if (cluster)
    in.price = [plan = folder / "plan.toml",
                c = *cluster](std::span<const std::string> sets) -> std::optional<PricedRun> {
      const std::optional<RunSpec> run = changed_plan(plan, sets);
      return run ? price_plan(*run, c, 1) : std::nullopt;
    };
  return in;
}

}  // namespace trireme::test
