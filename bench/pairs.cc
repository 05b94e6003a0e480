// Steps of two layouts in turn, in one process: on a machine whose clock moves from minute to minute, what
// one is to the other. Two ZeRO stages over rank threads of one thread each, or (--alone) one rank that has
// all their threads and the first of the stages over the ranks; llama of the demo's size. One JSON line.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/timed.h"
#include "random_batch.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "runtime/stage_runner.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

struct Options {
  int ranks = 2, pairs = 10, warmup = 1;
  std::vector<int> zero = {0, 1};
  bool alone = false;  // in place of the first stage: one rank, as many threads as the others have together
  int64_t layers = 6, hidden = 384, heads = 6, ffn = 1024, vocab = 4096, seq = 256, global = 12;
  std::string precision = "f32";
};

RunSpec run_of(const Options& o, int ranks, int zero) {
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = o.vocab, r.model.layers = o.layers, r.model.hidden = o.hidden, r.model.ffn = o.ffn;
  r.model.heads = r.model.kv_heads = o.heads;
  r.data.seq_len = o.seq;
  r.batch.micro = o.global / ranks, r.batch.global = o.global;
  r.layout.dp = ranks, r.layout.zero = zero;
  r.precision.compute = r.precision.reduce = r.precision.grads = o.precision;
  r.train.threads = o.ranks / ranks;
  r.model.finish(o.seq);
  return r;
}

// What a rank steps through in turn; null: this rank has no part in it.
using Pair = std::array<std::unique_ptr<StageRunner>, 2>;

// Seconds of a step by layout and pair, of rank 0 from the moment in which all begin until all have ended.
std::array<std::vector<double>, 2> measure(const Options& o) {
  const int first = o.alone ? 1 : o.ranks;
  const std::array<RunSpec, 2> runs{run_of(o, first, o.alone ? 0 : o.zero[0]),
                                    run_of(o, o.ranks, o.zero[o.alone ? 0 : 1])};
  std::array<Schedule, 2> schedules;
  std::array<int64_t, 2> arena{};
  for (size_t k = 0; k < 2; k++) {
    schedules[k] = schedule_of(runs[k]);
    arena[k] = book_training(runs[k], schedules[k], runs[k].train.threads).arena_bytes;
  }
  std::array<std::vector<double>, 2> seconds;
  run_rank_threads(o.ranks, "cpu", {.threads = 1, .bind = true}, [&](Device& device, CommFactory& factory) {
    const auto wide = make_device("cpu", {.threads = o.ranks});
    std::array<std::unique_ptr<CommSet>, 2> comms;
    Pair runners;
    for (size_t k = 0; k < 2; k++) {
      const bool lone = k == 0 && o.alone;
      if (lone && factory.rank() > 0) continue;
      if (!lone) comms[k] = std::make_unique<CommSet>(factory, mesh_of(runs[k].layout));
      runners[k] = std::make_unique<StageRunner>(runs[k], RunMode::train, lone ? *wide : device, arena[k],
                                                 comms[k].get());
      runners[k]->init_weights();
    }
    const FillBatch fill = random_batch(runs[1]);
    for (int p = 0; p < o.warmup + o.pairs; p++)
      for (size_t i = 0; i < 2; i++) {
        const size_t k = p % 2 ? 1 - i : i;  // a b, b a, a b
        agree_max(factory.control(), 0);
        const double begin = now_s();
        if (runners[k]) runners[k]->step(schedules[k].ranks[0], p + 1, runs[k].tokens_per_step(), fill);
        if (factory.rank() == 0 && p >= o.warmup) seconds[k].push_back(now_s() - begin);
      }
    agree_max(factory.control(), 0);
  });
  return seconds;
}

void report(const Options& o) {
  const auto seconds = measure(o);
  std::vector<double> ratios;
  for (size_t i = 0; i < seconds[0].size(); i++) ratios.push_back(seconds[0][i] / seconds[1][i]);
  std::vector<double> sorted = ratios;
  std::sort(sorted.begin(), sorted.end());
  auto at = [&](double q) { return sorted[size_t(q * double(sorted.size() - 1))]; };
  fmt::print(
      "{{\"ranks\":{},\"alone\":{},\"zero\":[{}],\"precision\":\"{}\",\"median_s\":[{:.4f},{:.4f}],\"ratio\":"
      "{:.4f},"
      "\"quartiles\":[{:.4f},{:.4f}],\"ratios\":[{:.3f}]}}\n",
      o.ranks, o.alone, fmt::join(o.zero, ","), o.precision, median(seconds[0]), median(seconds[1]),
      median(ratios), at(0.25), at(0.75), fmt::join(ratios, ","));
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  Options o;
  CLI::App app(
      "steps of two layouts in turn in one process, as a JSON line: seconds, and the first's over the "
      "second's");
  app.add_option("--ranks", o.ranks, "rank threads")->check(CLI::Range(2, 64));
  app.add_option("--zero", o.zero, "the two stages")->expected(2)->check(CLI::Range(0, 3));
  app.add_flag(
      "--alone", o.alone,
      "in place of the first of a pair: one rank with as many threads; the second is of the first stage");
  app.add_option("--pairs", o.pairs, "measured")->check(CLI::Range(1, 10000));
  app.add_option("--warmup", o.warmup, "pairs before them");
  app.add_option("--global", o.global, "sequences a step");
  app.add_option("--precision", o.precision, "compute, gradients, and what travels")
      ->check(CLI::IsMember({"f32", "bf16"}));
  CLI11_PARSE(app, argc, argv);
  try {
    report(o);
    return 0;
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return int(e.fault);
  }
}
