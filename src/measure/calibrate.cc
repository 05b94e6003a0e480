#include "measure/calibrate.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "base/rng.h"
#include "base/timed.h"
#include "device/cpu/peak.h"
#include "measure/device_rates.h"
#include "measure/price.h"
#include "measure/robust_parts.h"
#include "measure/speeds.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "runtime/recording.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

constexpr int64_t kFewRows = 32;
constexpr int64_t kSmall = 256;  // narrower models are soon done: more sizes of them are run, each shorter

struct Model {
  std::string_view arch;
  int64_t hidden, heads, tokens, seq, vocab, layers = 1;
  int64_t kv_heads = 0, ffn = 0;  // 0: as many as heads; the architecture's usual
};

RunSpec drill_of(const Model& m, std::string_view compute, int threads) {
  RunSpec r;
  r.model = ModelSpec::of(std::string(m.arch));
  r.model.vocab = m.vocab, r.model.layers = m.layers, r.model.hidden = m.hidden;
  r.model.heads = m.heads, r.model.kv_heads = m.kv_heads > 0 ? m.kv_heads : m.heads;
  r.model.ffn = m.ffn > 0 ? m.ffn : m.arch == "gpt2" ? 4 * m.hidden : (8 * m.hidden / 3 + 15) / 16 * 16;
  if (r.model.moe()) r.model.experts = 4, r.model.experts_per_token = 2, r.model.moe_ffn = 2 * m.hidden;
  r.data.seq_len = m.seq;
  r.batch.micro = r.batch.global = m.tokens / m.seq;
  r.precision.compute = compute;
  r.train.threads = threads;
  r.model.finish(m.seq);
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

// Seconds of calls from when all ranks have come, by table and payload. Told by streams' threads.
class CallTimes : public CommObserver {
 public:
  explicit CallTimes(int ranks) : ranks_(ranks) {}
  void issued(const CommCall&) override {}
  void done(const CommCall& c, int64_t begin_ns, int64_t met_ns, int64_t end_ns) override {
    // A single message takes mostly until its other end comes.
    if (c.peer >= 0 || c.payload <= 0 || end_ns <= met_ns) return;
    const std::string table = call_table(name_of(c.kind), c.algorithm, size_t(ranks_), c.stream.id != 0);
    const std::lock_guard lock(mutex_);
    seconds_[table][c.payload].push_back(double(end_ns - std::max(met_ns, begin_ns)) * 1e-9);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    seconds_.clear();
  }
  std::map<std::string, std::map<int64_t, std::vector<double>>> take() { return std::move(seconds_); }

 private:
  int ranks_;
  std::mutex mutex_;
  std::map<std::string, std::map<int64_t, std::vector<double>>> seconds_;
};

struct Drilled {
  std::vector<Tape> tapes;
  std::vector<double> step_s;  // of the same steps, of the slowest rank
  double clock = 1;            // FLOP/s of a burst of arithmetic around them
  std::map<std::string, std::map<int64_t, std::vector<double>>> calls;
  double waited_s = 0;  // for each op
  bool stopped = false;
};

// Rank 0's tapes and calls of steps for about `seconds`, and of at least `fewest`: one step that the system
// held up is then no median. The first step, which touches memory and makes plans, does not count, of whole
// steps nor the second.
Drilled drill_run(const RunSpec& run, const CalibrationRequest& o, double seconds, int64_t fewest) {
  const int threads = o.threads;
  const bool waits = o.device != "cpu";
  constexpr int64_t kMost = 64;
  constexpr double kBurst = 0.01;
  const Schedule schedule = schedule_of(run);
  const Booking booking = book_training(run, schedule, threads);
  Drilled out;
  CallTimes times(int(run.world()));
  const MakeDevice named = [&] { return make_device(o.device, {.threads = threads}); };
  // Each rank by itself: threads that meet around so short a burst would time how they meet.
  auto clock = [&] { return waits ? 1.0 : cpu::f32_peak(1, kBurst); };
  std::vector<double> clocks(size_t(run.world()));
  const RankBody body = [&](Device& device, CommFactory& factory) {
    const double before = clock();
    StepRecorder recorder(device, factory, waits);
    CommSet comms(recorder.factory(), mesh_of(run.layout));
    if (factory.rank() == 0) comms.observe(&times);
    StageRunner runner(run, RunMode::train, recorder.device(), booking.arena_bytes, &comms);
    runner.init_weights();
    const FillBatch fill = drill_tokens(run, factory.rank());
    const std::vector<Action>& actions = schedule.ranks.at(size_t(runner.sharing().pp.rank));
    auto agreed = [&](int64_t v) { return factory.world() > 1 ? agree_max(factory.control(), v) : v; };
    int64_t steps = 3;
    for (int64_t s = 0; s < steps; s++) {
      const bool stop = factory.rank() == 0 && o.stop && o.stop();
      if (agreed(stop) > 0) {  // and all begin together
        if (factory.rank() == 0) out.stopped = true;
        break;
      }
      recorder.start(runner, actions);
      const double took = runner.step(actions, s + 1, run.tokens_per_step(), fill).seconds;
      Tape tape = recorder.stop();
      const double slowest = double(agreed(int64_t(took * 1e9))) * 1e-9;
      if (s == 1) steps = 1 + std::clamp(int64_t(seconds / slowest), fewest, kMost);
      if (factory.rank() > 0) continue;
      if (s == 0)
        times.clear();
      else
        out.tapes.push_back(std::move(tape));
      if (s > 1) out.step_s.push_back(slowest);
    }
    // Now, at the clock that the steps ran at: one that idles is several times slower.
    if (waits && factory.rank() == 0) out.waited_s = waiting_s(device);
    agreed(0);  // nobody leaves while others still need it
    clocks[size_t(factory.rank())] = (before + clock()) / 2;
    if (factory.rank() == 0) comms.observe(nullptr);
  };
  run_rank_threads(int(run.world()), o.make ? o.make : named, body, {}, waits ? 0 : threads);
  out.clock = std::accumulate(clocks.begin(), clocks.end(), 0.0) / double(clocks.size());
  out.calls = times.take();
  return out;
}

// One collective of a full buffer, by name.
void call_once(Communicator& c, Collective kind, const Tensor& full) {
  const int64_t part = full.numel() / c.size();
  const Tensor mine = full.narrow(0, part * c.rank(), part), all = full.narrow(0, 0, part * c.size());
  if (kind == Collective::all_reduce) c.all_reduce({.buf = full}, {});
  if (kind == Collective::all_gather) c.all_gather({.shard = mine, .full = all}, {});
  if (kind == Collective::reduce_scatter) c.reduce_scatter({.full = all, .shard = mine}, {});
  if (kind == Collective::all_to_all) {
    const std::vector<int64_t> rows(size_t(c.size()), 1);
    const int64_t row = part / 2;
    c.all_to_all({.send = full.narrow(0, 0, row * c.size()).view({c.size(), row}),
                  .recv = full.narrow(0, row * c.size(), row * c.size()).view({c.size(), row}),
                  .send_rows = rows,
                  .recv_rows = rows},
                 {});
  }
  if (kind == Collective::p2p) {  // a hop of a ring: payload is what goes and what comes
    const int64_t half = full.numel() / 2;
    const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
    const P2p batch[] = {{full.narrow(0, 0, half), next, true}, {full.narrow(0, half, half), before, false}};
    c.p2p({.ops = batch}, {});
  }
  if (kind == Collective::broadcast) c.broadcast({.buf = full}, {});
  if (kind == Collective::reduce) c.reduce({.buf = full}, {});
}

// A buffer that was not touched for so long that caches of one core do not hold it.
class ColdBuffers {
 public:
  ColdBuffers(Device& device, int64_t bytes) : device_(device), bytes_(bytes), data_(device.reserve(bytes)) {
    std::fill_n(data_, bytes, std::byte{0});
  }
  ColdBuffers(const ColdBuffers&) = delete;
  ~ColdBuffers() { device_.release(data_, bytes_); }
  Tensor next(int64_t bytes) {
    if (at_ + bytes > bytes_) at_ = 0;
    return Tensor(data_ + std::exchange(at_, at_ + bytes), {bytes / 4}, DType::f32);
  }

 private:
  Device& device_;
  int64_t bytes_, at_ = 0;
  std::byte* data_;
};

// Median seconds on rank 0 from when all have come: a barrier before each.
double seconds_of(Communicator& c, Collective kind, ColdBuffers& buffers, int64_t bytes) {
  std::vector<double> s;
  for (int i = 0; i < 9; i++) {
    const Tensor full = buffers.next(bytes);
    c.barrier({});
    const double begin = now_s();
    call_once(c, kind, full);
    s.push_back(now_s() - begin);
  }
  return median(s);
}

// Calls of groups of neighbours, all groups of that size at once, as a layout's are.
// Rank 0 asks whether to stop before each size: then there are fewer.
std::vector<SpeedTable> time_calls(int ranks, int group, const std::function<bool()>& stop) {
  constexpr int64_t kSizes[] = {1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24};
  // Of each rank, beyond caches; of many ranks together no more than a laptop has.
  const int64_t cold = std::max<int64_t>(64 << 20, std::min<int64_t>(192 << 20, (int64_t(4) << 30) / ranks));
  constexpr Collective kKinds[] = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                                   Collective::all_to_all, Collective::broadcast,  Collective::reduce,
                                   Collective::p2p};
  std::vector<SpeedTable> out;
  run_rank_threads(ranks, "cpu", {.threads = 1, .bind = true}, [&](Device& device, CommFactory& factory) {
    std::vector<int> mine(static_cast<size_t>(group));
    std::iota(mine.begin(), mine.end(), factory.rank() / group * group);
    auto c = factory.split(mine, "bench");
    ColdBuffers buffers(device, cold);
    bool stopped = false;
    for (Collective kind : kKinds) {
      SpeedTable t;
      for (int64_t bytes : kSizes) {
        stopped = stopped || agree_max(factory.control(), int64_t(factory.rank() == 0 && stop && stop())) > 0;
        if (stopped) break;
        const double s = seconds_of(*c, kind, buffers, bytes);
        t.of = call_table(name_of(kind), c->algorithm(kind, bytes), size_t(group));
        t.points.push_back({.work = double(bytes), .seconds = s});
      }
      if (factory.rank() == 0 && !t.points.empty()) out.push_back(std::move(t));
    }
    c->barrier({});
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

namespace {

// GPT-2 of 124 million and 1.5 billion, llamas of one and eight billion and a smaller one, two layers of
// each: sizes between are priced by the nearest (measure/speeds.h).
std::vector<Model> models_for_gpus(const CalibrationRequest& o) {
  if (o.quick) return {{"llama", 512, 8, 2048, 512, 4096, 1}, {"gpt2", 768, 12, 2048, 512, 4096, 1}};
  return {{"gpt2", 768, 12, 8192, 1024, 50257, 2},
          {"gpt2", 768, 12, 32768, 1024, 50257, 2},
          {"gpt2", 1600, 25, 8192, 1024, 50257, 2},
          {"llama", 2048, 32, 8192, 2048, 128256, 2, 8, 8192},
          {"llama", 2048, 32, 16384, 2048, 128256, 2, 8, 8192},
          {"llama", 4096, 32, 8192, 4096, 32000, 2, 8, 14336},
          {"llama", 1024, 16, 4096, 1024, 32000, 2}};
}

std::vector<Model> drilled_models(const CalibrationRequest& o) {
  if (o.device != "cpu") return models_for_gpus(o);
  if (o.quick)
    return {
        {"llama", 96, 3, 512, 128, 512}, {"llama", 384, 6, 512, 128, 2048}, {"gpt2", 192, 6, 512, 128, 512}};
  constexpr int64_t kTokens[] = {64, 512, 128, 1024, 256}, kVocab[] = {512, 4096, 1000, 2048};
  constexpr int64_t kSeq[] = {256, 64, 128};
  constexpr std::string_view kArchs[] = {"llama", "gpt2", "llama"};
  const int64_t wide = o.ranks > 1 ? 640 : 512;  // one layer of these is enough to wait for
  std::vector<Model> models;
  size_t n = 0;
  auto add = [&](std::string_view arch, int64_t hidden, int64_t head) {
    const int64_t tokens = kTokens[n % 5], layers = hidden < wide ? 2 : 1;
    models.push_back(
        {arch, hidden, hidden / head, tokens, std::min(tokens, kSeq[n % 3]), kVocab[n % 4], layers});
    n++;
  };
  for (int64_t hidden : {64, 96, 128, 192, 256, 320, 384, 512, 640, 768})
    for (int i = 0; i < (o.ranks > 1 ? hidden < kSmall ? 6 : 3 : 1); i++)
      add(o.ranks > 1 ? kArchs[i % 3] : kArchs[n % 2], hidden, hidden % 64 || n % 4 == 0 ? 32 : 64);
  for (int64_t hidden : {64, 96, 192, 320, 512})
    for (int i = 0; i < (o.ranks > 1 ? 2 : 1); i++) add("mixtral", hidden, 32);
  // Products of few rows: a gradient of a weight takes what its output takes in memory, which no law of more
  // rows tells. Experts have half of the tokens.
  if (o.ranks > 1)
    for (int64_t hidden : {96, 192, 320, 512, 768}) {
      const int64_t heads = hidden / 32, layers = hidden < wide ? 2 : 1;
      const auto few = int64_t(models.size());
      models.push_back(
          {few % 2 ? "gpt2" : "llama", hidden, heads, kFewRows, kFewRows, kVocab[few % 4], layers});
      if (hidden == 192 || hidden == 320)
        models.push_back({"mixtral", hidden, heads, 2 * kFewRows, 2 * kFewRows, kVocab[few % 4], layers});
    }
  return models;
}

// Ranks that divide something else than the batch: their calls, and what a part of a layer takes.
std::vector<RunSpec> divided_drills(const CalibrationRequest& o) {
  std::vector<RunSpec> runs;
  for (int64_t hidden : {192, 512, 64})
    for (int way = 0; way < 6; way++) {
      const Model m{way == 5 ? "mixtral" : "llama", hidden, hidden / 32, 512, 128, 1024, 2};
      RunSpec r = drill_of(m, o.bf16 && way % 2 == int(hidden == 512) ? "bf16" : "f32", o.threads);
      LayoutSpec& l = r.layout;
      if (way < 2) l.tp = o.ranks, l.sequence = way == 1;
      if (way == 2 || way == 3) l.cp = o.ranks, l.cp_method = way == 2 ? "ring" : "ulysses";
      if (way == 4) l.pp = o.ranks, r.batch.micro /= 2, r.model.layers = o.ranks;
      if (way == 5) l.dp = l.ep = o.ranks, r.batch.global *= o.ranks;
      if (way % 2 == 1) r.batch.global *= 2;
      if (problems_of(r).empty() && unsupported_of(r).empty())
        runs.push_back(resolve(r, {.native_bf16 = o.bf16}));
    }
  return runs;
}

}  // namespace

std::vector<RunSpec> drills(const CalibrationRequest& o) {
  std::vector<RunSpec> runs;
  int64_t n = 0, model = 0;
  for (const Model& m : drilled_models(o)) {
    // Emulated, every other one, of either architecture.
    const bool both = o.bf16 || o.quick || (o.ranks > 1 ? model : model / 2) % 2 == 0;
    model++;
    for (std::string_view compute : {"f32", "bf16"}) {
      if (compute == "bf16" && !both) continue;
      if (o.device != "cpu" && compute == "f32" && o.bf16) continue;
      RunSpec r = drill_of(m, compute, o.threads);
      if (o.device == "cuda") r.train.device = o.device;
      r.layout.dp = o.ranks, r.batch.global = o.ranks * r.batch.micro;
      // Either type in every stage; every other one with a second microbatch, whose gradients are added.
      if (o.ranks > 1) r.layout.zero = (n + n / 4) % 4, r.batch.global *= 1 + n / 2 % 2, n++;
      runs.push_back(resolve(r, {.native_bf16 = o.bf16}));
      // Calls beside compute count in short steps, and what they take is told best by runs that differ in
      // nothing else: each small model once more, in either type, two stages of ZeRO further.
      if (o.ranks == 1 || o.quick || m.hidden >= kSmall || (model + (compute == "bf16")) % 2) continue;
      r.layout.zero = (r.layout.zero + 2) % 4;
      runs.push_back(resolve(r, {.native_bf16 = o.bf16}));
    }
  }
  if (o.ranks > 1 && !o.quick)
    for (RunSpec& r : divided_drills(o)) runs.push_back(std::move(r));
  return runs;
}

void SpeedSamples::add(const Tape& tape, std::string_view compute, double factor, double waited_s) {
  int64_t last = 0;
  struct Whole {
    double work = 0, seconds = 0;
  };
  std::map<std::string_view, Whole> of_step;
  for (const Piece& p : tape.pieces) {
    if (p.stream != 0) continue;
    if (p.launched && last > 0) between_.push_back(factor * double(p.begin_ns - last) * 1e-9);
    last = p.launched ? p.end_ns : 0;
    if (p.kind != PieceKind::op || work_of(p) <= 0 || p.end_ns <= p.begin_ns || of_offload(p)) continue;
    const bool product = is_product(p.name);
    const Size size{product ? p.rows : 1, product ? p.cols : 1, work_of(p)};
    const double took = std::max(1e-9, factor * double(p.end_ns - p.begin_ns) * 1e-9 - waited_s);
    if (passes_through_state(p.name))
      of_step[p.name].work += size.work, of_step[p.name].seconds += took;
    else
      seconds_[std::string(p.name) + " " + std::string(compute)][size].push_back(took);
  }
  for (const auto& [op, whole] : of_step)
    seconds_[std::string(op) + " " + std::string(compute)][{1, 1, whole.work}].push_back(whole.seconds);
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

WholeStepFit fit_whole_steps(std::span<const WholeStep> steps) {
  // Of relative errors: those below count squared, for a step of many calls says more of a call than one of
  // few.
  constexpr double kSoft = 0.05, kLeastRatio = 0.01;
  constexpr int kRounds = 16;
  std::vector<PartsOf<3>> parts;
  for (const WholeStep& s : steps)
    parts.push_back({s.pieces_s / s.step_s, s.calls / s.step_s, s.bytes / s.step_s});
  const PartsOf<3> x = robust_parts(std::move(parts), kSoft, kRounds).x;
  WholeStepFit fit;
  std::vector<double> left(steps.size());
  const auto take = [&](double call, double byte) {
    fit.call_s = call, fit.byte_s = byte;
    for (size_t i = 0; i < steps.size(); i++)
      left[i] = (steps[i].step_s - call * steps[i].calls - byte * steps[i].bytes) / steps[i].pieces_s;
    fit.usual = median(left);
  };
  take(x[1], x[2]);
  // Steps that are nothing but calls tell nothing of the ratio.
  if (fit.usual < kLeastRatio) take(0, 0);
  std::map<Axis, std::vector<double>> own;
  for (size_t i = 0; i < steps.size(); i++)
    if (left[i] > 0) own[steps[i].axis].push_back(left[i]);
  for (auto& [axis, ratios] : own) fit.ratios[axis] = pooled_ratio(std::move(ratios), fit.usual);
  return fit;
}

double pooled_ratio(std::vector<double> own, double usual) {
  constexpr double kUsual = 4;
  if (own.empty()) return usual;
  const double n = double(own.size());
  return std::exp((n * std::log(median(std::move(own))) + kUsual * std::log(usual)) / (n + kUsual));
}

namespace {

using CallSeconds = std::map<std::string, std::map<int64_t, std::vector<double>>>;

void add_calls(CallSeconds& to, const CallSeconds& of, double factor) {
  for (const auto& [table, sizes] : of)
    for (const auto& [bytes, seconds] : sizes)
      for (double s : seconds) to[table][bytes].push_back(factor * s);
}

SpeedTable* find_table(std::vector<SpeedTable>& tables, std::string_view of) {
  const auto t = std::find_if(tables.begin(), tables.end(), [&](const SpeedTable& o) { return o.of == of; });
  return t == tables.end() ? nullptr : &*t;
}

// Calls as they were in steps, and as they are alone where no step's were of that kind or of so few bytes: on
// the rank's own thread no slower than what is larger; beside compute with what those take longer there.
std::vector<SpeedTable> call_tables(const CallSeconds& seen, int ranks, const std::function<bool()>& stop) {
  std::vector<SpeedTable> out;
  for (const auto& [of, sizes] : seen) {
    SpeedTable t{.of = of, .points = {}};
    for (const auto& [bytes, seconds] : sizes)
      t.points.push_back({.work = double(bytes), .seconds = std::max(1e-9, median(seconds))});
    thin(t);
    out.push_back(std::move(t));
  }
  for (SpeedTable& alone : time_calls(ranks, ranks, stop)) {
    for (const bool beside : {true, false}) {
      SpeedTable* t = find_table(out, alone.of + std::string(beside ? kBeside : ""));
      if (!t) continue;
      const SpeedPoint least = t->points.front();
      const double longer = beside ? std::max(0.0, least.seconds - curve_seconds(alone, least.work)) : 0;
      std::vector<SpeedPoint> fewer;
      for (const SpeedPoint& p : alone.points)
        if (p.work < least.work)
          fewer.push_back({.work = p.work, .seconds = std::min(p.seconds + longer, least.seconds)});
      t->points.insert(t->points.begin(), fewer.begin(), fewer.end());
    }
    if (!find_table(out, alone.of)) out.push_back(std::move(alone));
  }
  for (const int group : smaller_groups(ranks))
    for (SpeedTable& t : time_calls(ranks, group, stop)) out.push_back(std::move(t));
  return out;
}

// What whole steps took of what their pieces foretell, by the calibration as it is so far, and by what ranks
// divide.
void take_whole_steps(Calibration& c, std::span<const RunSpec> runs, std::span<const double> step_s,
                      const std::function<bool()>& stop) {
  ClusterSpec machine;
  machine.together = c;
  std::vector<WholeStep> steps;
  for (size_t i = 0; i < runs.size(); i++) {
    if (stop && stop()) return;
    const Schedule schedule = schedule_of(runs[i]);
    const Tape tape = record_training(runs[i], schedule, c.threads);
    const double pieces_s = step_time(runs[i], schedule, machine, c.threads, tape).step_s;
    if (pieces_s <= 0 || step_s[i] <= 0) continue;
    const Beside beside = calls_beside(tape);
    steps.push_back(
        {divided_axis(runs[i].layout), step_s[i], pieces_s, double(beside.calls), double(beside.bytes)});
  }
  if (steps.empty()) return;
  const WholeStepFit fit = fit_whole_steps(steps);
  c.beside_s = fit.call_s, c.beside_s_per_byte = fit.byte_s;
  for (const auto& [axis, ratio] : fit.ratios) c.*whole_step(axis) = ratio;
}

}  // namespace

std::vector<int> smaller_groups(int ranks) {
  std::vector<int> groups;
  for (int group = 2; group < ranks; group *= 2)
    if (ranks % group == 0) groups.push_back(group);
  return groups;
}

Calibration calibrate(const CalibrationRequest& o, const CalibrationProgress& progress) {
  const std::vector<RunSpec> runs = drills(o);
  SpeedSamples samples;
  CallSeconds calls;
  std::vector<Drilled> drilled;
  std::vector<double> clocks;
  const bool here = o.device == "cpu";
  require(here || o.ranks == 1, "GPUs are calibrated one rank at a time");
  for (size_t i = 0; i < runs.size(); i++) {
    // Few runs divide more than the batch, and their whole steps count; emulated steps are long.
    const bool divides = o.ranks > 1 && divided_axis(runs[i].layout) != Axis::dp;
    const bool brief = o.ranks == 1 || (!o.bf16 && runs[i].precision.compute == "bf16");
    drilled.push_back(drill_run(runs[i], o,
                                divides                         ? 0.2
                                : runs[i].model.hidden < kSmall ? 0.06
                                                                : 0.12,
                                brief                                                  ? 2
                                : runs[i].batch.global > o.ranks * runs[i].batch.micro ? 3
                                                                                       : 4));
    clocks.push_back(drilled[i].clock);
    if (drilled[i].stopped) return {};
    if (progress) progress(int64_t(i) + 1, int64_t(runs.size()));
  }
  const double usual = median(clocks);
  std::vector<double> step_s;
  for (size_t i = 0; i < runs.size(); i++) {
    const double factor = clocks[i] / usual;
    for (Tape& t : drilled[i].tapes) {
      for (Piece& p : t.pieces) p = as_filled(p, runs[i], t.rank);
      samples.add(t, runs[i].precision.compute, factor, drilled[i].waited_s);
    }
    add_calls(calls, drilled[i].calls, factor);
    step_s.push_back(factor * median(drilled[i].step_s));
  }
  Calibration c{.ranks = o.ranks, .threads = o.threads};
  if (here) c.between_s = samples.between_s();  // else launches are ahead of what runs
  for (const SpeedTable& t : samples.tables()) c.ops.list.push_back(speed_table_text(t));
  if (o.ranks == 1) return c;
  for (const SpeedTable& t : call_tables(calls, o.ranks, o.stop)) c.calls.list.push_back(speed_table_text(t));
  take_whole_steps(c, runs, step_s, o.stop);
  if (o.stop && o.stop()) return {};  // half of it is none
  return c;
}

}  // namespace trireme
