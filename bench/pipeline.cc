// Steps of pipelines beside what their schedules say. JSON lines, one a schedule.
//
//   computed  stages of a real model on one thread each, several schedules in turn. Every action is timed; a
//             step's prediction is the replay (sim/pipeline.h) of its schedule with the mean times of that
//             step's F, B or I, and W of each stage, and of its messages; loss, norm and update come behind
//             it.
//   padded    stages whose every action lasts a given time: a model of next to nothing, whose rank sleeps for
//             the rest. Sleep takes no processor, so there may be more ranks than cores.
//   replayed  how long the simulator takes over a schedule.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/json.h"
#include "base/timed.h"
#include "comm/wrap/delayed.h"
#include "random_batch.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "sim/pipeline.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}
double ms(double ns) {
  return std::round(ns / 1e3) / 1e3;
}
double share(double x) {
  return std::round(x * 1e4) / 1e4;
}

struct Options {
  std::vector<std::string> schedules = {"1f1b", "zb-h1", "gpipe"};
  int stages = 2, microbatches = 8, steps = 15, warmup = 2;  // stages: pipeline ranks
  int64_t layers = 6, hidden = 384, heads = 6, ffn = 1024, vocab = 512, seq = 256, micro = 1;
  std::string precision = "f32";
  std::vector<double> pad_ms = {20, 20, 20};
  double link_ms = 0;
  bool uneven = false;
};

// ---- what runs ----

RunSpec run_of(const Options& o, const std::string& schedule) {
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = o.vocab, r.model.layers = o.layers, r.model.hidden = o.hidden, r.model.ffn = o.ffn;
  r.model.heads = r.model.kv_heads = o.heads;
  r.data.seq_len = o.seq;
  r.batch.micro = o.micro, r.batch.global = o.micro * o.microbatches;
  r.layout.pp = o.stages, r.layout.schedule = schedule, r.layout.chunks = default_chunks(schedule);
  r.precision.compute = r.precision.reduce = o.precision;
  r.precision.grads = "f32";
  r.train.threads = 1;
  r.model.finish(o.seq);
  return r;
}

struct Case {
  RunSpec run;
  Schedule schedule;
  Booking booking;
  std::vector<StageTimes> pads;  // of each stage; empty: as long as they take
};

Case case_of(const RunSpec& run) {
  Case c{.run = run, .schedule = schedule_of(run), .booking = {}, .pads = {}};
  c.booking = book_training(run, c.schedule, 1);
  return c;
}

// Lets the actions of a rank last as long as their stages' times say: between an action's last op and what
// follows it, its message for one, the rank sleeps.
class Pad {
 public:
  Pad(std::span<const Action> actions, std::span<const StageTimes> times)
      : actions_(actions), times_(times) {}
  void start() { next_ = 0, until_ = {}; }
  void enter() {  // an action: the one before is over
    if (until_ > Clock::time_point()) std::this_thread::sleep_until(until_);
    until_ = {};
    if (next_ == actions_.size()) return;
    const int64_t time = time_of(actions_[next_++]);
    if (time > 0) until_ = Clock::now() + std::chrono::nanoseconds(time);
  }

 private:
  int64_t time_of(const Action& a) const {
    const StageTimes& t = times_[size_t(a.stage)];
    if (a.kind == Act::F) return t.forward;
    if (a.kind == Act::I) return t.input;
    if (a.kind == Act::W) return t.weight;
    return a.kind == Act::B ? t.input + t.weight : 0;
  }
  std::span<const Action> actions_;
  std::span<const StageTimes> times_;
  size_t next_ = 0;
  Clock::time_point until_;
};

// What one rank did in a step; steady clock.
struct Lap {
  int64_t begin = 0, end = 0;
  std::vector<Span> actions;
};
using Step = std::vector<Lap>;  // by rank

// One rank's side of a case.
class Runner {
 public:
  Runner(const Case& c, Device& device, CommFactory& factory)
      : case_(c),
        comms_(factory, mesh_of(c.run.layout)),
        runner_(c.run, RunMode::train, device, c.booking.arena_bytes, &comms_),
        actions_(c.schedule.ranks[size_t(factory.rank())]),
        spans_(actions_.size() + 8),
        pad_(actions_, c.pads),
        fill_(random_batch(c.run)) {
    runner_.init_weights();
    if (!c.pads.empty())
      runner_.watch().control = {.phase = [this](std::string_view) { pad_.enter(); }, .stop = {}};
  }

  Lap step(int64_t number) {
    spans_.clear();
    runner_.trace(&spans_);
    runner_.device().kernels().observe(nullptr);  // actions alone
    pad_.start();
    agree_max(comms_.control(), 0);  // all begin together
    Lap lap{.begin = now_ns(), .end = 0, .actions = {}};
    runner_.step(actions_, number, case_.run.tokens_per_step(), fill_);
    lap.end = now_ns();
    runner_.trace(nullptr);
    for (const Span& s : spans_.spans())
      if (s.kind == SpanKind::action) lap.actions.push_back(s);
    return lap;
  }

 private:
  const Case& case_;
  CommSet comms_;
  StageRunner runner_;
  std::span<const Action> actions_;
  SpanRecorder spans_;
  Pad pad_;
  FillBatch fill_;
};

// Steps of all cases in turn, by case.
std::vector<std::vector<Step>> measure(const Options& o, std::span<const Case> cases) {
  std::vector<std::vector<Step>> out(cases.size());
  for (std::vector<Step>& steps : out) steps.assign(size_t(o.steps), Step(size_t(o.stages)));
  run_rank_threads(o.stages, "cpu", {.threads = 1, .bind = true}, [&](Device& device, CommFactory& factory) {
    auto delayed = make_delayed(factory, {.alpha = o.link_ms * 1e-3}, &device);
    CommFactory& link = o.link_ms > 0 ? *delayed : factory;
    std::vector<std::unique_ptr<Runner>> runners;
    for (const Case& c : cases) runners.push_back(std::make_unique<Runner>(c, device, link));
    for (int s = -o.warmup; s < o.steps; s++)
      for (size_t k = 0; k < cases.size(); k++) {
        const size_t c = (k + size_t(s + o.warmup)) % cases.size();
        Lap lap = runners[c]->step(s + o.warmup + 1);
        if (s >= 0) out[c][size_t(s)][size_t(factory.rank())] = std::move(lap);
      }
    agree_max(factory.control(), 0);  // nobody leaves while others still need it
  });
  return out;
}

// ---- what was measured ----

int64_t begin_of(const Step& step) {
  int64_t begin = step[0].begin;
  for (const Lap& l : step) begin = std::min(begin, l.begin);
  return begin;
}
int64_t end_of(const Step& step) {
  int64_t end = 0;
  for (const Lap& l : step) end = std::max(end, l.end);
  return end;
}

bool of_schedule(const Span& s) {
  return s.microbatch >= 0;
}

// Loss, norm and update: from the last action of any rank to the end.
int64_t tail_of(const Step& step) {
  int64_t last = 0;
  for (const Lap& l : step)
    for (const Span& s : l.actions)
      if (of_schedule(s)) last = std::max(last, s.end_ns);
  return end_of(step) - last;
}

// Of a rank with one stage, the mean of each kind of action.
StageTimes times_of(const Lap& lap) {
  auto mean = [&](std::string_view name) {
    int64_t sum = 0, n = 0;
    for (const Span& s : lap.actions)
      if (s.name == name) sum += s.end_ns - s.begin_ns, n++;
    return sum / std::max<int64_t>(1, n);
  };
  const int64_t input = mean("I");
  return {.forward = mean("F"), .input = input > 0 ? input : mean("B"), .weight = mean("W")};
}

const Span* action_of(const Lap& lap, std::string_view name, int32_t mb) {
  for (const Span& s : lap.actions)
    if (s.name == name && s.microbatch == mb) return &s;
  return nullptr;
}

// Of messages that a rank waited for, from the send until the receiver goes on: the median.
int64_t link_of(const Step& step) {
  std::vector<double> took;
  for (size_t r = 0; r < step.size(); r++)
    for (const Span& s : step[r].actions) {
      const bool forward = s.name == "RecvF";
      if (!forward && s.name != "RecvB") continue;
      const Span* sent = action_of(step[forward ? r - 1 : r + 1], forward ? "SendF" : "SendB", s.microbatch);
      if (sent && s.begin_ns < sent->begin_ns) took.push_back(double(s.end_ns - sent->begin_ns));
    }
  return int64_t(median(took));
}

// Mean over ranks of the time in which compute stood still for a message.
double waits_of(const Step& step) {
  int64_t sum = 0;
  for (const Lap& l : step)
    for (const Span& s : l.actions)
      if (s.name.starts_with("Recv")) sum += s.end_ns - s.begin_ns;
  return double(sum) / double(step.size());
}

std::vector<StageTimes> stage_times_of(const Step& step) {
  std::vector<StageTimes> times;
  for (const Lap& l : step) times.push_back(times_of(l)), times.back().send = link_of(step);
  return times;
}

// Number by number, the median over steps.
std::vector<StageTimes> median_times(std::span<const Step> steps) {
  std::vector<std::vector<StageTimes>> all;
  for (const Step& s : steps) all.push_back(stage_times_of(s));
  std::vector<StageTimes> out(all[0].size());
  for (size_t r = 0; r < out.size(); r++)
    for (int64_t StageTimes::*part :
         {&StageTimes::forward, &StageTimes::input, &StageTimes::weight, &StageTimes::send}) {
      std::vector<double> values;
      for (const auto& one : all) values.push_back(double(one[r].*part));
      out[r].*part = int64_t(median(values));
    }
  return out;
}

// ---- what the schedule says ----

struct Prediction {
  int64_t makespan = 0;
  double waits = 0;  // mean over ranks
};
Prediction predict(const Schedule& s, std::span<const StageTimes> times) {
  const PipelineTapes tapes = tapes_of(s, times);
  const Replay all = replay(tapes.ranks());
  Prediction p{.makespan = all.makespan};
  for (const RankReplay& r : all.ranks) p.waits += double(r.exposed) / double(all.ranks.size());
  return p;
}

// Microbatches of a rank's whole share that the fullest rank holds.
double held_of(const Case& c) {
  int most = 0;
  for (const HeldPeak& p : held_peaks(c.schedule)) most = std::max(most, p.all());
  return double(most) / double(c.run.layout.chunks);
}

Json head_of(const Case& c) {
  return {{"schedule", c.run.layout.schedule},
          {"ranks", c.run.layout.pp},
          {"stages", c.schedule.stages},
          {"microbatches", c.schedule.microbatches}};
}

struct Result {
  double measured, predicted;  // ns, medians over steps
};

Result report_computed(const Case& c, std::span<const Step> steps, Json& line) {
  std::vector<double> measured, predicted, ratios, tails, waits, predicted_waits;
  for (const Step& s : steps) {
    const Prediction p = predict(c.schedule, stage_times_of(s));
    tails.push_back(double(tail_of(s)));
    measured.push_back(double(end_of(s) - begin_of(s)));
    predicted.push_back(double(p.makespan) + tails.back());
    ratios.push_back(measured.back() / predicted.back());
    waits.push_back(waits_of(s)), predicted_waits.push_back(p.waits);
  }
  const std::vector<StageTimes> times = median_times(steps);
  const double of_medians = double(predict(c.schedule, times).makespan) + median(tails);
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  line = head_of(c);
  line["step_ms"] = ms(median(measured)), line["predicted_ms"] = ms(median(predicted));
  line["ratio"] = share(median(ratios)), line["least"] = share(*least), line["most"] = share(*most);
  line["predicted_by_medians_ms"] = ms(of_medians),
  line["ratio_of_medians"] = share(median(measured) / of_medians);
  line["waits_ms"] = ms(median(waits)), line["predicted_waits_ms"] = ms(median(predicted_waits));
  for (const StageTimes& t : times)
    line["times_ms"].push_back({ms(double(t.forward)), ms(double(t.input)), ms(double(t.weight))});
  line["link_ms"] = ms(double(times[0].send)), line["tail_ms"] = ms(median(tails));
  line["held"] = held_of(c), line["peak_mb"] = ms(double(c.booking.peak_total));
  return {median(measured), median(predicted)};
}

// Of the k-th case over the first: of medians; of rounds, whose steps ran one after the other; and what the
// first schedule would take with the k-th's times (a B is its I and W) over what the k-th takes.
void report_gain(std::span<const Case> cases, const std::vector<std::vector<Step>>& steps, size_t k,
                 std::array<Result, 2> medians, Json& line) {
  std::vector<double> gains, predicted;
  auto took = [](const Step& s) { return double(end_of(s) - begin_of(s)); };
  for (size_t s = 0; s < steps[k].size(); s++) {
    const std::vector<StageTimes> times = stage_times_of(steps[k][s]);
    const double tail = double(tail_of(steps[k][s]));
    auto with = [&](size_t c) { return double(predict(cases[c].schedule, times).makespan) + tail; };
    gains.push_back(took(steps[0][s]) / took(steps[k][s]) - 1);
    predicted.push_back(with(0) / with(k) - 1);
  }
  line["over"] = cases[0].run.layout.schedule;
  line["gain"] = share(medians[0].measured / medians[1].measured - 1);
  line["gain_predicted"] = share(medians[0].predicted / medians[1].predicted - 1);
  line["gain_by_rounds"] = share(median(gains)), line["gain_by_its_times"] = share(median(predicted));
}

// ---- the three commands ----

void computed(const Options& o) {
  std::vector<Case> cases;
  for (const std::string& name : o.schedules) {
    if (default_chunks(name) > 1) bad_request("{}: of several stages a rank no times are taken", name);
    cases.push_back(case_of(run_of(o, name)));
  }
  const std::vector<std::vector<Step>> steps = measure(o, cases);
  Result first{};
  for (size_t k = 0; k < cases.size(); k++) {
    Json line;
    const Result r = report_computed(cases[k], steps[k], line);
    if (k == 0) first = r;
    if (k > 0) report_gain(cases, steps, k, {first, r}, line);
    fmt::print("{}\n", line.dump());
  }
}

// In ns; uneven: each stage's times between 0.6 and 1.4 of what is asked for.
std::vector<StageTimes> pads_of(const Options& o, int64_t stages, int64_t chunks) {
  std::vector<StageTimes> pads;
  for (int64_t s = 0; s < stages; s++) {
    auto pad = [&](size_t kind) {
      const double factor = 0.6 + 0.8 * uniform(rng_key(1, uint64_t(s), "pads"), kind);
      return int64_t(1e6 * o.pad_ms[kind] / double(chunks) * (o.uneven ? factor : 1));
    };
    pads.push_back({.forward = pad(0), .input = pad(1), .weight = pad(2)});
    pads.back().send = int64_t(1e6 * o.link_ms);
  }
  return pads;
}

void padded(Options o) {
  std::vector<Case> cases;
  for (const std::string& name : o.schedules) {
    const int64_t chunks = default_chunks(name);
    o.layers = o.stages * chunks, o.hidden = 16, o.heads = 2, o.ffn = 16, o.vocab = 64, o.seq = 8;
    cases.push_back(case_of(run_of(o, name)));
    cases.back().pads = pads_of(o, o.stages * chunks, chunks);
  }
  const std::vector<std::vector<Step>> steps = measure(o, cases);
  for (size_t k = 0; k < cases.size(); k++) {
    const Case& c = cases[k];
    const Prediction p = predict(c.schedule, c.pads);
    std::vector<double> measured, waits;
    double compute = 0;  // the longest that an action would take by itself
    for (const Step& s : steps[k]) {
      measured.push_back(double(end_of(s) - begin_of(s)));
      waits.push_back(waits_of(s));
      for (const Lap& l : s)
        for (const Span& a : l.actions)
          if (of_schedule(a) && a.name.size() == 1)
            compute = std::max(compute, double(a.end_ns - a.begin_ns));
    }
    const double virtual_ns = double(p.makespan);
    const auto [least, most] = std::minmax_element(measured.begin(), measured.end());
    Json line = head_of(c);
    line["uneven"] = o.uneven, line["link_ms"] = o.link_ms;
    line["step_ms"] = ms(median(measured)), line["virtual_ms"] = ms(virtual_ns);
    line["ratio"] = share(median(measured) / virtual_ns);
    line["least"] = share(*least / virtual_ns), line["most"] = share(*most / virtual_ns);
    line["waits_ms"] = ms(median(waits)), line["virtual_waits_ms"] = ms(p.waits);
    line["longest_compute_ms"] = ms(compute), line["held"] = held_of(c);
    fmt::print("{}\n", line.dump());
  }
}

void replayed(const Options& o) {
  for (const std::string& name : o.schedules) {
    const int chunks = default_chunks(name);
    std::vector<double> seconds;
    size_t pieces = 0;
    int64_t makespan = 0;
    for (int i = 0; i < o.steps; i++) {
      const double begin = now_s();
      const PipelineTapes tapes =
          tapes_of(make_schedule(name, o.stages, chunks, o.microbatches), std::vector<StageTimes>(1));
      makespan = replay(tapes.ranks()).makespan;
      seconds.push_back(now_s() - begin);
      pieces = 0;
      for (const Tape& t : tapes.tapes) pieces += t.pieces.size();
    }
    const Json line = {{"schedule", name},
                       {"ranks", o.stages},
                       {"stages", o.stages * chunks},
                       {"microbatches", o.microbatches},
                       {"pieces", pieces},
                       {"makespan", makespan},
                       {"seconds", median(seconds)},
                       {"most", *std::max_element(seconds.begin(), seconds.end())}};
    fmt::print("{}\n", line.dump());
  }
}

void common(CLI::App& c, Options& o) {
  const std::vector<std::string> names(schedule_names().begin(), schedule_names().end());
  c.add_option("--schedules", o.schedules, "names of layout.schedule")->check(CLI::IsMember(names));
  c.add_option("--stages", o.stages, "pipeline ranks")->check(CLI::Range(2, 1024));
  c.add_option("--microbatches", o.microbatches, "of a step")->check(CLI::Range(1, 32767));
  c.add_option("--steps", o.steps, "measured, of each schedule")->check(CLI::Range(1, 1000));
  c.add_option("--warmup", o.warmup, "steps before them")->check(CLI::Range(0, 1000));
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  CLI::App app("steps of pipelines beside what their schedules say, as JSON lines");
  app.require_subcommand(1);
  Options real, sleeping{.schedules = {"gpipe", "1f1b", "zb-h1", "interleaved", "zb-v"},
                         .stages = 4,
                         .microbatches = 16,
                         .steps = 5};
  Options simulated{.schedules = {"gpipe", "1f1b", "zb-h1"}, .stages = 64, .microbatches = 512, .steps = 5};
  CLI::App* c = app.add_subcommand("computed", "a real model's stages; gains are over the first schedule");
  common(*c, real);
  c->add_option("--layers", real.layers, "blocks of the model");
  c->add_option("--hidden", real.hidden, "its width");
  c->add_option("--heads", real.heads, "its heads");
  c->add_option("--ffn", real.ffn, "its inner width");
  c->add_option("--vocab", real.vocab, "its vocabulary");
  c->add_option("--seq", real.seq, "tokens of a sequence");
  c->add_option("--micro", real.micro, "sequences of a microbatch");
  c->add_option("--precision", real.precision, "of compute")->check(CLI::IsMember({"f32", "bf16"}));
  c->callback([&] { computed(real); });
  CLI::App* p = app.add_subcommand("padded", "stages whose actions last a given time");
  common(*p, sleeping);
  p->add_option("--pad", sleeping.pad_ms, "ms of F, I and W of a rank's whole share; a B takes I + W")
      ->expected(3);
  p->add_option("--link", sleeping.link_ms, "ms that a message takes")->check(CLI::Range(0.0, 1e3));
  p->add_flag("--uneven", sleeping.uneven, "stages' times differ, from 0.6 to 1.4 of these");
  p->callback([&] { padded(sleeping); });
  CLI::App* r = app.add_subcommand("replayed", "the simulator's own time");
  common(*r, simulated);
  r->callback([&] { replayed(simulated); });
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return int(e.fault);
  }
}
