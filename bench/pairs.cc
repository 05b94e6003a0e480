// Steps of two ZeRO stages in turn, in one process: on a machine whose clock moves from minute to minute,
// what one is to the other. Rank threads of one thread each, llama of the demo's size. One JSON line.
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
  int64_t layers = 6, hidden = 384, heads = 6, ffn = 1024, vocab = 4096, seq = 256, global = 12;
  std::string precision = "f32";
};

RunSpec run_of(const Options& o, int zero) {
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = o.vocab, r.model.layers = o.layers, r.model.hidden = o.hidden, r.model.ffn = o.ffn;
  r.model.heads = r.model.kv_heads = o.heads;
  r.data.seq_len = o.seq;
  r.batch.micro = o.global / o.ranks, r.batch.global = o.global;
  r.layout.dp = o.ranks, r.layout.zero = zero;
  r.precision.compute = r.precision.reduce = r.precision.grads = o.precision;
  r.train.threads = 1;
  r.model.finish(o.seq);
  return r;
}

// Seconds of a step by stage and pair, of rank 0 from the moment in which all begin.
std::array<std::vector<double>, 2> measure(const Options& o) {
  std::array<RunSpec, 2> runs{run_of(o, o.zero[0]), run_of(o, o.zero[1])};
  std::array<Schedule, 2> schedules;
  std::array<int64_t, 2> arena{};
  for (size_t k = 0; k < 2; k++) {
    schedules[k] = schedule_of(runs[k]);
    arena[k] = book_training(runs[k], schedules[k], 1).arena_bytes;
  }
  std::array<std::vector<double>, 2> seconds;
  run_rank_threads(o.ranks, "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
    CommSet first(factory, mesh_of(runs[0].layout)), second(factory, mesh_of(runs[1].layout));
    StageRunner a(runs[0], RunMode::train, device, arena[0], &first);
    StageRunner b(runs[1], RunMode::train, device, arena[1], &second);
    const std::array<StageRunner*, 2> runners{&a, &b};
    for (StageRunner* r : runners) r->init_weights();
    const FillBatch fill = random_batch(runs[0]);
    for (int p = 0; p < o.warmup + o.pairs; p++)
      for (size_t i = 0; i < 2; i++) {
        const size_t k = p % 2 ? 1 - i : i;  // a b, b a, a b
        agree_max(factory.control(), 0);
        const double begin = now_s();
        runners[k]->step(schedules[k].ranks[0], p + 1, runs[k].tokens_per_step(), fill);
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
      "{{\"ranks\":{},\"zero\":[{}],\"precision\":\"{}\",\"median_s\":[{:.4f},{:.4f}],\"ratio\":{:.4f},"
      "\"quartiles\":[{:.4f},{:.4f}],\"ratios\":[{:.3f}]}}\n",
      o.ranks, fmt::join(o.zero, ","), o.precision, median(seconds[0]), median(seconds[1]), median(ratios),
      at(0.25), at(0.75), fmt::join(ratios, ","));
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  Options o;
  CLI::App app(
      "steps of two ZeRO stages in turn in one process, as a JSON line: seconds, and the first's over the "
      "second's");
  app.add_option("--ranks", o.ranks, "rank threads")->check(CLI::Range(2, 64));
  app.add_option("--zero", o.zero, "the two stages")->expected(2)->check(CLI::Range(0, 3));
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
