#include "plan/calibrate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "base/timed.h"
#include "plan/speeds.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "runtime/recording.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

struct Model {
  std::string_view arch;
  int64_t hidden, heads, tokens, vocab, layers = 1;
};

RunSpec drill_of(const Model& m, std::string_view compute, int threads) {
  constexpr int64_t kSeq = 128;
  RunSpec r;
  r.model = ModelSpec::of(std::string(m.arch));
  r.model.vocab = m.vocab, r.model.layers = m.layers, r.model.hidden = m.hidden;
  r.model.heads = r.model.kv_heads = m.heads;
  r.model.ffn = m.arch == "gpt2" ? 4 * m.hidden : (8 * m.hidden / 3 + 15) / 16 * 16;
  if (r.model.moe()) r.model.experts = 4, r.model.experts_per_token = 2, r.model.moe_ffn = 2 * m.hidden;
  r.data.seq_len = kSeq;
  r.batch.micro = r.batch.global = m.tokens / kSeq;
  r.precision.compute = compute;
  r.train.threads = threads;
  r.model.finish(kSeq);
  return r;
}

// Tokens that only take time.
FillBatch drill_tokens(const RunSpec& run, int rank) {
  return [vocab = uint64_t(run.model.vocab), seq = run.data.seq_len, rank](int64_t step, int64_t mb,
                                                                           const HostBatch& b) {
    const uint64_t key = rng_key(uint64_t(step), uint64_t(mb) * 64 + uint64_t(rank), "drill");
    for (size_t i = 0; i < b.tokens.size(); i++) {
      b.tokens[i] = int32_t(below(key, i, vocab)), b.targets[i] = int32_t(below(key, i + 1, vocab));
      b.positions[i] = int32_t(int64_t(i) % seq);
    }
  };
}

// The tapes of rank 0's steps; the first steps, which touch memory and make plans, are not among them.
std::vector<Tape> drill_tapes(const RunSpec& run, int threads, int warmup, int steps) {
  const Schedule schedule = schedule_of(run);
  const Booking booking = book_training(run, schedule, threads);
  std::vector<Tape> tapes;
  run_rank_threads(int(run.world()), "cpu", {.threads = threads}, [&](Device& device, CommFactory& factory) {
    StepRecorder recorder(device, factory);
    CommSet comms(recorder.factory(), mesh_of(run.layout));
    StageRunner runner(run, RunMode::train, recorder.device(), booking.arena_bytes, &comms);
    runner.init_weights();
    const FillBatch fill = drill_tokens(run, factory.rank());
    const std::vector<Action>& actions = schedule.ranks.at(size_t(runner.sharing().pp.rank));
    for (int s = 1; s <= warmup + steps; s++) {
      if (factory.world() > 1) agree_max(factory.control(), 0);  // all begin together
      recorder.start(runner, actions);
      runner.step(actions, s, run.tokens_per_step(), fill);
      Tape tape = recorder.stop();
      if (s > warmup && factory.rank() == 0) tapes.push_back(std::move(tape));
    }
    if (factory.world() > 1) agree_max(factory.control(), 0);  // nobody leaves while others still need it
  });
  return tapes;
}

using Call = std::function<void(Communicator&, const Tensor&)>;

// One collective of a full buffer, by name.
void call_once(Communicator& c, Collective kind, const Tensor& full) {
  const int64_t part = full.numel() / c.size();
  const Tensor mine = full.narrow(0, part * c.rank(), part), all = full.narrow(0, 0, part * c.size());
  if (kind == Collective::all_reduce) c.all_reduce({.buf = full}, {});
  if (kind == Collective::all_gather) c.all_gather({.shard = mine, .full = all}, {});
  if (kind == Collective::reduce_scatter) c.reduce_scatter({.full = all, .shard = mine}, {});
  if (kind == Collective::broadcast) c.broadcast({.buf = full}, {});
  if (kind == Collective::reduce) c.reduce({.buf = full}, {});
}

// Median seconds on rank 0 from when all have come: a barrier before each.
double seconds_of(Communicator& c, Collective kind, const Tensor& full) {
  std::vector<double> s;
  for (int i = 0; i < 7; i++) {
    c.barrier({});
    const double begin = now_s();
    call_once(c, kind, full);
    s.push_back(now_s() - begin);
  }
  return median(s);
}

std::vector<SpeedTable> time_calls(int ranks) {
  constexpr int64_t kSizes[] = {1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24};
  constexpr Collective kKinds[] = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                                   Collective::broadcast, Collective::reduce};
  std::vector<SpeedTable> out;
  run_rank_threads(ranks, "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
    std::vector<int> all(static_cast<size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    auto c = factory.split(all, "bench");
    std::byte* data = device.reserve(kSizes[std::size(kSizes) - 1]);
    for (Collective kind : kKinds) {
      SpeedTable t;
      for (int64_t bytes : kSizes) {
        const Tensor full(data, {bytes / 4}, DType::f32);
        const double s = seconds_of(*c, kind, full);
        t.of = call_table(name_of(kind), c->algorithm(kind, bytes), size_t(ranks));
        t.points.push_back({.work = double(bytes), .seconds = s});
      }
      if (factory.rank() == 0) out.push_back(std::move(t));
    }
    c->barrier({});
    device.release(data, kSizes[std::size(kSizes) - 1]);
  });
  return out;
}

// Neighbours on a curve closer than a factor of 1.5 become one point, at their means.
void thin(SpeedTable& t) {
  std::vector<SpeedPoint> out;
  for (size_t i = 0; i < t.points.size();) {
    double work = 0, seconds = 0, n = 0;
    const double first = t.points[i].work;
    for (; i < t.points.size() && t.points[i].work <= 1.5 * first; i++)
      work += std::log(std::max(1.0, t.points[i].work)), seconds += std::log(t.points[i].seconds), n++;
    out.push_back({.work = std::exp(work / n), .seconds = std::exp(seconds / n)});
  }
  t.points = std::move(out);
}

}  // namespace

std::vector<RunSpec> drills(const CalibrationRequest& o) {
  std::vector<Model> models = {
      {"llama", 64, 2, 512, 512},   {"llama", 192, 6, 1024, 512},  {"llama", 384, 6, 512, 4096},
      {"llama", 384, 6, 2048, 512}, {"llama", 768, 12, 512, 2048}, {"gpt2", 128, 4, 512, 1024},
      {"gpt2", 256, 4, 1024, 512},  {"gpt2", 512, 8, 256, 4096},   {"llama", 96, 3, 256, 4096},
      {"llama", 576, 9, 1024, 512}, {"mixtral", 128, 4, 512, 512}, {"mixtral", 384, 6, 512, 512}};
  if (o.quick)
    models = {{"llama", 96, 3, 512, 512}, {"llama", 384, 6, 512, 2048}, {"gpt2", 192, 6, 512, 512}};
  std::vector<RunSpec> runs;
  for (const Model& m : models)
    for (std::string_view compute : {"f32", "bf16"}) {
      if (compute == "bf16" && !o.bf16) continue;
      RunSpec r = drill_of(m, compute, o.threads);
      r.layout.dp = o.ranks, r.batch.global = o.ranks * r.batch.micro;
      runs.push_back(resolve(r, {.native_bf16 = o.bf16}));
    }
  return runs;
}

void SpeedSamples::add(const Tape& tape, std::string_view compute) {
  int64_t last = 0;
  for (const Piece& p : tape.pieces) {
    if (p.stream != 0) continue;
    if (p.launched && last > 0) between_.push_back(double(p.begin_ns - last) * 1e-9);
    last = p.launched ? p.end_ns : 0;
    if (p.kind != PieceKind::op || work_of(p) <= 0 || p.end_ns <= p.begin_ns || of_disk(p)) continue;
    const bool product = is_product(p.name);
    const Size size{product ? p.rows : 1, product ? p.cols : 1, work_of(p)};
    seconds_[std::string(p.name) + " " + std::string(compute)][size].push_back(double(p.end_ns - p.begin_ns) *
                                                                               1e-9);
  }
}

std::vector<SpeedTable> SpeedSamples::tables() const {
  std::vector<SpeedTable> out;
  for (const auto& [of, sizes] : seconds_) {
    SpeedTable t{.of = of, .points = {}};
    for (const auto& [size, seconds] : sizes)
      t.points.push_back({.rows = double(std::max<int64_t>(1, size.rows)),
                          .cols = double(std::max<int64_t>(1, size.cols)),
                          .work = size.work,
                          .seconds = std::max(1e-9, median(seconds))});
    if (!is_product(of.substr(0, of.find(' ')))) thin(t);
    out.push_back(std::move(t));
  }
  return out;
}

double SpeedSamples::between_s() const {
  return median(between_);
}

Calibration calibrate(const CalibrationRequest& o, const CalibrationProgress& progress) {
  const int warmup = 1, steps = o.quick ? 2 : 3;
  const std::vector<RunSpec> runs = drills(o);
  SpeedSamples samples;
  for (size_t i = 0; i < runs.size(); i++) {
    for (const Tape& t : drill_tapes(runs[i], o.threads, warmup, steps))
      samples.add(t, runs[i].precision.compute);
    if (progress) progress(int64_t(i) + 1, int64_t(runs.size()));
  }
  Calibration c{.ranks = o.ranks, .threads = o.threads};
  c.between_s = samples.between_s();
  for (const SpeedTable& t : samples.tables()) c.ops.list.push_back(speed_table_text(t));
  if (o.ranks > 1)
    for (const SpeedTable& t : time_calls(o.ranks)) c.calls.list.push_back(speed_table_text(t));
  return c;
}

}  // namespace trireme
