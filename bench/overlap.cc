// Steps of real rank threads over a link that delays, beside the replay of what they issued: how long compute
// waits for communication, measured and forecast. One JSON line.
//
// Each rank's step is recorded (runtime/recording.h) with the times that its pieces of compute took; the
// forecast replays these tapes with the link's alpha and beta for every collective (sim/replay.h). So what is
// compared is waiting: where the schedule's timeline has it, and where the run has it.
//
// --pace T: an op lasts no less than its FLOPs at the rate at which a block's forward takes T ms (the
// embedding, which has none, takes a block's time): the rest of its time its rank sleeps, which takes no
// processor. So compute takes the time it would take on so many cores, whatever else this machine does.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/rng.h"
#include "comm/algorithms.h"
#include "comm/wrap/delayed.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "runtime/recording.h"
#include "sim/replay.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

struct Options {
  int ranks = 2, zero = 0, steps = 5, warmup = 2;
  bool keep_last = false;                 // layout.reshard_last = false
  bool context = false, in_line = false;  // ranks divide sequences; their ring waits for each block
  bool tensor = false, sequence = false;  // ranks divide layers, and the rows between them
  int64_t chunks = 1;                     // of their products and collectives

  int64_t replicas() const { return context || tensor ? 1 : ranks; }
  int64_t layers = 6, hidden = 64, heads = 2, ffn = 172, vocab = 512, seq = 32, micro = 2, microbatches = 1;
  double pace_ms = 0, bucket_mb = 0;
  LinkCost link{20e-6, 4e-8};
  std::string precision = "f32";
};

RunSpec run_of(const Options& o) {
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = o.vocab, r.model.layers = o.layers, r.model.hidden = o.hidden, r.model.ffn = o.ffn;
  r.model.heads = r.model.kv_heads = o.heads;
  r.data.seq_len = o.seq;
  r.batch.micro = o.micro, r.batch.global = o.micro * o.replicas() * o.microbatches;
  (o.context ? r.layout.cp : o.tensor ? r.layout.tp : r.layout.dp) = o.ranks;
  r.layout.sequence = o.sequence, r.layout.tp_chunks = o.chunks;
  r.layout.cp_overlap = !o.in_line;
  r.layout.zero = o.zero, r.layout.bucket_mb = o.bucket_mb, r.layout.reshard_last = !o.keep_last;
  r.precision.compute = r.precision.reduce = o.precision;
  r.precision.grads = o.precision == "bf16" && o.microbatches == 1 ? "bf16" : "f32";
  r.train.threads = 1;
  r.model.finish(o.seq);
  return r;
}

FillBatch batches(const RunSpec& run, int rank) {
  return [&run, rank](int64_t step, int64_t mb, const HostBatch& b) {
    const uint64_t key = rng_key(uint64_t(rank) + 1, uint64_t(step), "overlap");
    const uint64_t vocab = uint64_t(run.model.vocab);
    for (size_t i = 0; i < b.tokens.size(); i++) {
      b.tokens[i] = int32_t(below(key, uint64_t(mb) * 1000003 + i, vocab));
      b.targets[i] = (b.tokens[i] * 7 + 3) % int32_t(vocab);
      b.positions[i] = int32_t(i) % int32_t(run.data.seq_len);
    }
  };
}

// Each op's least duration.
class Pace : public OpObserver {
 public:
  // ms: of a block's forward, whose FLOPs the tape has; 0 = no pace.
  Pace(double ms, const Tape& tape) : least_(ms * 1e-3) {
    double flops = 0;
    for (const Piece& p : tape.pieces)
      if (p.layer.starts_with("blocks.0") && p.action == "F") flops += p.cost.flops;
    per_flop_ = least_ / std::max(1.0, flops);
  }
  void before(std::string_view) override { begin_ = Clock::now(); }
  void after(std::string_view op, const Cost& cost, const Outputs&) override {
    double s = cost.flops * per_flop_;
    if (op == "embedding") s = least_;
    if (op == "embedding_backward") s = 2 * least_;
    if (s > 0) std::this_thread::sleep_until(begin_ + std::chrono::duration<double>(s));
  }

 private:
  using Clock = std::chrono::steady_clock;
  double least_, per_flop_ = 0;
  Clock::time_point begin_;
};

bool of_control(const Tape& t, const Piece& p) {
  return p.group >= 0 && t.groups[size_t(p.group)].name == "control";
}

// Compute as it was measured (what the thread did between two pieces belongs to the later one), calls by the
// link; agreements, which no link delays, as long as they took once all ranks were there.
std::vector<Price> prices_of(const Tape& t, const LinkCost& link, int64_t begin_ns) {
  std::vector<Price> prices;
  int64_t last = begin_ns;
  for (const Piece& p : t.pieces) {
    Price price{.before = p.begin_ns - last, .time = 0};
    last = p.stream == 0 ? p.end_ns : p.begin_ns;
    if (p.kind == PieceKind::op) price.time = p.end_ns - p.begin_ns;
    if (p.kind == PieceKind::call && of_control(t, p)) {
      price.time = p.end_ns - p.met_ns;
    } else if (p.kind == PieceKind::call) {
      CommCall c;
      for (size_t k = 0; k < kCollectives; k++)
        if (name_of(Collective(k)) == p.name) c.kind = Collective(k);
      c.algorithm = p.algorithm, c.payload = p.payload, c.wire = p.wire;
      const int size = int(t.groups[size_t(p.group)].ranks.size());
      price.time = std::llround(1e9 * link_seconds(c, {size, size}, link));
    }
    prices.push_back(price);
  }
  return prices;
}

// Of one rank's step, seconds. ends: waits for the first gather and the last reduction, which nothing can
// hide. late: until the others had come to an agreement (of the loss, the norm), which no link delays: these
// ranks computed for longer, and nothing was on its way.
struct Waits {
  double all = 0, ends = 0, late = 0, compute = 0, comm = 0;
  void add(const Waits& w) {
    all += w.all, ends += w.ends, late += w.late, compute += w.compute, comm += w.comm;
  }
};

// time_of: when a piece began, met and ended, measured or forecast.
template <class TimeOf>
Waits waits_of(const Tape& t, const TimeOf& time_of) {
  size_t first_gather = ~size_t(0), last_reduction = ~size_t(0);
  std::vector<std::vector<size_t>> issued(t.streams.size());
  for (size_t i = 0; i < t.pieces.size(); i++) {
    const Piece& p = t.pieces[i];
    issued[size_t(p.stream)].push_back(i);
    if (p.kind != PieceKind::call || of_control(t, p)) continue;
    if (p.name == "all_gather" && first_gather == ~size_t(0)) first_gather = i;
    if (p.name != "all_gather") last_reduction = i;
  }
  Waits w;
  for (size_t i = 0; i < t.pieces.size(); i++) {
    const Piece& p = t.pieces[i];
    if (p.stream != 0 || p.kind == PieceKind::op) continue;
    const PieceTime at = time_of(i);
    const double s = double(at.end - at.begin) * 1e-9;
    w.all += s;
    if (of_control(t, p)) w.late += double(at.met - at.begin) * 1e-9;
    if (p.kind != PieceKind::wait || p.mark == 0) continue;
    const size_t by = issued[size_t(p.on)][size_t(p.mark) - 1];
    if (by == first_gather || by == last_reduction) w.ends += s;
  }
  return w;
}

using Steps = std::vector<std::vector<Tape>>;  // [step][rank]

Steps measure(const Options& o, const RunSpec& run) {
  const Schedule schedule = schedule_of(run);
  const Booking booking = book_training(run, schedule, 1);
  const std::vector<Action>& actions = schedule.ranks[0];
  Steps tapes(size_t(o.steps), std::vector<Tape>(size_t(o.ranks)));
  run_rank_threads(o.ranks, "cpu", {.threads = 1, .bind = true}, [&](Device& device, CommFactory& factory) {
    auto delayed = make_delayed(factory, o.link, &device);
    StepRecorder recorder(device, *delayed);
    CommSet comms(recorder.factory(), mesh_of(run.layout));
    StageRunner runner(run, RunMode::train, recorder.device(), booking.arena_bytes, &comms);
    runner.init_weights();
    const FillBatch fill = batches(run, o.replicas() == 1 ? 0 : factory.rank());
    Pace pace(o.pace_ms, booking.tape);
    if (o.pace_ms > 0) device.kernels().observe(&pace);
    for (int s = 1; s <= o.warmup + o.steps; s++) {
      agree_max(factory.control(), 0);  // all begin together
      recorder.start(runner, actions);
      runner.step(actions, s, run.tokens_per_step(), fill);
      Tape tape = recorder.stop();
      if (s > o.warmup) tapes[size_t(s - o.warmup - 1)][size_t(factory.rank())] = std::move(tape);
    }
    device.kernels().observe(nullptr);
    agree_max(factory.control(), 0);  // nobody leaves while others still need it
  });
  return tapes;
}

// Prints the medians over steps of the mean over ranks.
void report(const Options& o, const Steps& steps) {
  std::vector<double> compute, comm, forecast, measured, forecast_ends, measured_ends, forecast_late,
      measured_late, beyond, makespan, step_s;
  for (const std::vector<Tape>& ranks : steps) {
    int64_t begin = ranks[0].pieces[0].begin_ns, end = 0;
    for (const Tape& t : ranks)
      begin = std::min(begin, t.pieces[0].begin_ns), end = std::max(end, t.pieces.back().end_ns);
    std::vector<std::vector<Price>> prices;
    std::vector<RankTape> tapes;
    for (const Tape& t : ranks) prices.push_back(prices_of(t, o.link, begin));
    for (size_t r = 0; r < ranks.size(); r++) tapes.push_back({int(r), &ranks[r], prices[r]});
    const Replay all = replay(tapes);
    Waits was, foretold;
    for (size_t r = 0; r < ranks.size(); r++) {
      foretold.add(waits_of(ranks[r], [&](size_t i) { return all.ranks[r].pieces[i]; }));
      was.add(waits_of(ranks[r], [&](size_t i) {
        const Piece& p = ranks[r].pieces[i];
        return PieceTime{p.begin_ns, p.met_ns, p.end_ns};
      }));
      foretold.compute += double(all.ranks[r].busy) * 1e-9;
      foretold.comm += double(all.ranks[r].comm) * 1e-9;
    }
    const double n = double(ranks.size());
    compute.push_back(foretold.compute / n), comm.push_back(foretold.comm / n);
    forecast.push_back(foretold.all / n), forecast_ends.push_back(foretold.ends / n);
    measured.push_back(was.all / n), measured_ends.push_back(was.ends / n);
    forecast_late.push_back(foretold.late / n), measured_late.push_back(was.late / n);
    beyond.push_back((was.all - was.ends - was.late) / n);
    makespan.push_back(double(all.makespan) * 1e-9), step_s.push_back(double(end - begin) * 1e-9);
  }
  std::string per_step;
  for (size_t i = 0; i < measured.size(); i++)
    per_step += fmt::format("{}{:.4f}", i ? "," : "", measured[i] / forecast[i]);
  auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
  };
  fmt::print(
      "{{\"ranks\":{},\"zero\":{},\"layers\":{},\"hidden\":{},\"microbatches\":{},\"pace_ms\":{},\"alpha\":{}"
      ","
      "\"beta\":{},\"compute_s\":{:.6f},\"comm_s\":{:.6f},\"forecast_s\":{:.6f},\"measured_s\":{:.6f},"
      "\"forecast_ends_s\":{:.6f},\"measured_ends_s\":{:.6f},\"forecast_late_s\":{:.6f},"
      "\"measured_late_s\":{:.6f},\"beyond_ends_s\":{:.6f},\"makespan_s\":{:.6f},\"step_s\":{:.6f},"
      "\"ratios\":[{}]}}\n",
      o.ranks, o.zero, o.layers, o.hidden, o.microbatches, o.pace_ms, o.link.alpha, o.link.beta,
      median(compute), median(comm), median(forecast), median(measured), median(forecast_ends),
      median(measured_ends), median(forecast_late), median(measured_late), median(beyond), median(makespan),
      median(step_s), per_step);
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  Options o;
  CLI::App app("steps over a link that delays, beside their replay, as a JSON line");
  app.add_option("--ranks", o.ranks, "rank threads")->check(CLI::Range(2, 64));
  app.add_option("--zero", o.zero, "ZeRO stage")->check(CLI::Range(0, 3));
  app.add_flag("--keep-last", o.keep_last,
               "the last layer's weights stay for the backward pass (layout.reshard_last)");
  app.add_flag("--context", o.context, "ranks divide sequences (layout.cp) instead of batches");
  app.add_flag("--in-line", o.in_line, "the ring of keys and values waits for each block");
  app.add_flag("--tensor", o.tensor, "ranks divide layers (layout.tp) instead of batches");
  app.add_flag("--sequence", o.sequence, "with --tensor, the rows between them too (layout.sequence)");
  app.add_option("--chunks", o.chunks, "of tp's products and collectives (layout.tp_chunks)");
  app.add_option("--layers", o.layers, "blocks of the model");
  app.add_option("--hidden", o.hidden, "its width");
  app.add_option("--heads", o.heads, "its heads");
  app.add_option("--ffn", o.ffn, "its inner width");
  app.add_option("--vocab", o.vocab, "its vocabulary");
  app.add_option("--seq", o.seq, "tokens of a sequence");
  app.add_option("--micro", o.micro, "sequences of a microbatch and rank");
  app.add_option("--microbatches", o.microbatches, "of a step and rank");
  app.add_option("--bucket-mb", o.bucket_mb, "layout.bucket_mb; 0 = each unit alone");
  app.add_option("--precision", o.precision, "compute, and what travels")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--pace", o.pace_ms, "ms that a block's forward takes at least; 0 = as long as it takes");
  app.add_option("--alpha", o.link.alpha, "seconds a message");
  app.add_option("--beta", o.link.beta, "seconds a byte");
  app.add_option("--steps", o.steps, "measured")->check(CLI::Range(1, 1000));
  app.add_option("--warmup", o.warmup, "steps before them");
  CLI11_PARSE(app, argc, argv);
  try {
    const RunSpec run = run_of(o);
    report(o, measure(o, run));
    return 0;
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return int(e.fault);
  }
}
