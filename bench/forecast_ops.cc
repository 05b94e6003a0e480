// trireme_forecast_ops RUN.toml [--set key=value ...]: where a forecast of rank threads' step errs, op by op.
//
// Runs real steps of the run file on random tokens, each rank recorded as a tape with the times that its
// pieces took, and prices the same tape as plan does, by the run's cluster file. Prints, of one rank and a
// step, expected and measured milliseconds: of each op and its shape of output, of what lies between
// launches, of collectives from when all ranks have met, of the waits before that (which have no price), and
// of the whole step. Medians over the steps but the first two.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>

#include "base/timed.h"
#include "measure/price.h"
#include "measure/speeds.h"
#include "random_batch.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "runtime/recording.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

struct Row {
  int64_t launches = 0;
  double expected_s = 0, measured_s = 0;
};
using Rows = std::map<std::string, Row>;

std::string name_of(const Piece& p, bool shapes) {
  if (p.kind == PieceKind::op && p.launched)
    return shapes && is_product(p.name) ? fmt::format("{} {}x{} {:.3g}", p.name, p.rows, p.cols, p.cost.flops)
                                        : std::string(p.name);
  return fmt::format("{}{}", p.name, p.stream == 0 ? " (call)" : " (beside compute)");
}

// Sums of one step.
Rows rows_of(const Tape& tape, const std::vector<Price>& prices, bool shapes) {
  Rows rows;
  int64_t last = 0;
  for (size_t i = 0; i < tape.pieces.size(); i++) {
    const Piece& p = tape.pieces[i];
    if (p.kind == PieceKind::wait || p.kind == PieceKind::recv) {
      rows["waits"].measured_s += double(p.end_ns - p.begin_ns) * 1e-9;
      last = 0;
      continue;
    }
    Row& row = rows[name_of(p, shapes)];
    row.launches++;
    row.expected_s += double(prices[i].time) * 1e-9;
    const bool met = p.kind == PieceKind::call && p.met_ns > 0;
    row.measured_s += double(p.end_ns - (met ? std::max(p.met_ns, p.begin_ns) : p.begin_ns)) * 1e-9;
    if (met && p.stream == 0)
      rows["waits"].measured_s += double(std::max<int64_t>(0, p.met_ns - p.begin_ns)) * 1e-9;
    if (p.stream != 0) continue;
    rows["between"].expected_s += double(prices[i].before) * 1e-9;
    if (p.launched && last > 0) rows["between"].measured_s += double(p.begin_ns - last) * 1e-9;
    last = p.launched ? p.end_ns : 0;
  }
  return rows;
}

struct Measured {
  std::vector<std::map<std::string, double>> steps;  // seconds by row
  std::vector<double> step_s;
  Rows rows;  // expected, and launches
};

Measured measure(const RunSpec& run, const ClusterSpec& cluster, int of, int steps, bool shapes) {
  constexpr int kThreads = 1, kWarm = 2;
  const Schedule schedule = schedule_of(run);
  const Booking booking = book_training(run, schedule, kThreads);
  Measured out;
  run_rank_threads(int(run.world()), "cpu", {.threads = kThreads, .bind = true},
                   [&](Device& device, CommFactory& factory) {
                     StepRecorder recorder(device, factory);
                     CommSet comms(recorder.factory(), mesh_of(run.layout));
                     StageRunner runner(run, RunMode::train, recorder.device(), booking.arena_bytes, &comms);
                     runner.init_weights();
                     const FillBatch fill = random_batch(run);
                     const auto& actions = schedule.ranks.at(size_t(runner.sharing().pp.rank));
                     for (int s = 0; s < steps + kWarm; s++) {
                       agree_max(factory.control(), 0);
                       recorder.start(runner, actions);
                       const double took = runner.step(actions, s + 1, run.tokens_per_step(), fill).seconds;
                       const Tape tape = recorder.stop();
                       if (s < kWarm || factory.rank() != of) continue;
                       out.rows = rows_of(tape, price(tape, cluster, run), shapes);
                       out.step_s.push_back(took);
                       out.steps.emplace_back();
                       for (const auto& [name, row] : out.rows) out.steps.back()[name] = row.measured_s;
                     }
                     agree_max(factory.control(), 0);
                   });
  return out;
}

void print(Measured m, double expected_s) {
  std::vector<std::pair<double, std::string>> order;
  for (auto& [name, row] : m.rows) {
    std::vector<double> s;
    for (const auto& step : m.steps)
      if (const auto it = step.find(name); it != step.end()) s.push_back(it->second);
    row.measured_s = median(s);
    order.push_back({-std::max(row.expected_s, row.measured_s), name});
  }
  std::sort(order.begin(), order.end());
  fmt::print("| of a step | launches | expected ms | measured ms | difference ms |\n|---|---|---|---|---|\n");
  const auto line = [](const std::string& name, int64_t n, double expected, double measured) {
    fmt::print("| {} | {} | {:.3f} | {:.3f} | {:+.3f} |\n", name, n, expected * 1e3, measured * 1e3,
               (expected - measured) * 1e3);
  };
  for (const auto& [size, name] : order)
    line(name, m.rows[name].launches, m.rows[name].expected_s, m.rows[name].measured_s);
  line("step", 1, expected_s, median(m.step_s));
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  CLI::App app{"a step of rank threads, op by op: expected beside measured"};
  std::string file;
  std::vector<std::string> sets;
  int rank = 0, steps = 10;
  bool shapes = false;
  app.add_option("run", file, "run file; its cluster.file says what was measured here")->required();
  app.add_option("--set", sets, "key=value");
  app.add_option("--rank", rank, "whose pieces");
  app.add_option("--steps", steps, "that count");
  app.add_flag("--shapes", shapes, "products by shape");
  CLI11_PARSE(app, argc, argv);
  try {
    const RunSpec run = resolve(load_run(file, sets), {.native_bf16 = false});
    const ClusterSpec cluster = as_met(run, load_cluster(run.cluster.file));
    const Schedule schedule = schedule_of(run);
    const StepTime t = step_time(run, schedule, cluster, 1, record_training(run, schedule, 1, 0, cluster));
    print(measure(run, cluster, rank, steps, shapes), t.step_s);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
