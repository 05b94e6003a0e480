// trireme simulate: a pipeline schedule in virtual time, drawn and held against what papers say of it.
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/cli.h"
#include "sim/draw.h"
#include "sim/published.h"

namespace trireme::cli {
namespace {

struct SimulateRequest {
  std::string schedule = "1f1b", file, times = "1,1,1", svg, html;
  int stages = 4, microbatches = 8, chunks = 0;
  double comm = 0;
  bool json = false;
};

// Times are kept in thousandths of a chunk's part, so that they are whole numbers.
constexpr int64_t kParts = 1000;

int64_t parts_of(double time, std::string_view what) {
  constexpr double kMost = 1e9;
  const double parts = time * double(kParts);
  if (!(time >= 0 && time <= kMost) || std::abs(parts - std::round(parts)) > 1e-6)
    bad_request("{}: {} is no time; right is a number from 0 to {:.0f} with at most three decimals", what,
                time, kMost);
  return std::llround(parts);
}

// "F,I,W" or "F,I,W,link" of a rank's whole share, as the times of one of its chunks multiplied by chunks.
StageTimes simulated_times(const SimulateRequest& q, int chunks) {
  std::vector<double> t;
  std::string_view rest = q.times;
  while (true) {
    double one = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), one);
    const bool more = end != rest.data() + rest.size();
    if (error != std::errc() || (more && *end != ','))
      bad_request("--times: \"{}\" is not F,I,W or F,I,W,link, such as 1,1,1 or 18.5,18.1,9.3,0.6", q.times);
    t.push_back(one);
    if (!more) break;
    rest.remove_prefix(size_t(end - rest.data()) + 1);
  }
  if (t.size() != 3 && t.size() != 4)
    bad_request("--times: \"{}\" has {} times; right are F,I,W or F,I,W,link", q.times, t.size());
  if (t.size() == 4 && q.comm > 0)
    bad_request("--comm: --times \"{}\" has a link's time already; give one", q.times);
  StageTimes s{.forward = parts_of(t[0], "--times"),
               .input = parts_of(t[1], "--times"),
               .weight = parts_of(t[2], "--times")};
  if (s.forward + s.input + s.weight == 0) bad_request("--times: \"{}\" takes no time at all", q.times);
  s.send = (t.size() == 4 ? parts_of(t[3], "--times") : parts_of(q.comm, "--comm")) * chunks;
  return s;
}

Schedule wanted_schedule(const SimulateRequest& q) {
  if (q.file.empty()) {
    const int chunks = q.chunks > 0 ? q.chunks : default_chunks(q.schedule);
    return make_schedule(q.schedule, q.stages, chunks, q.microbatches);
  }
  return parse_schedule(read_text(q.file));
}

double in_units(int64_t parts, int chunks) {
  return double(parts) / double(kParts * chunks);
}

// What a rank holds, in microbatches of its whole share.
std::vector<double> held_by_rank(const ScheduleTimeline& t) {
  std::vector<double> all;
  for (const HeldPeak& h : t.held) all.push_back(double(h.all()) / t.chunks);
  return all;
}

std::string simulate_summary(const ScheduleTimeline& t, const std::optional<Published>& paper) {
  const auto shown = [&](int64_t parts) { return fmt::format("{:.6g}", in_units(parts, t.chunks)); };
  std::string out = fmt::format(
      "bubble    {:.2f} % of a rank's own span, {:.2f} % of the makespan {}; longest idle {}\n",
      100 * t.bubble.own, 100 * t.bubble.of_makespan, shown(t.replay.makespan), shown(t.bubble.idle));
  if (paper)
    out += fmt::format("published {}{}\n", paper->idle_formula,
                       paper->idle
                           ? fmt::format(" = {}: {}", in_units(*paper->idle, t.chunks),
                                         *paper->idle == t.bubble.idle ? "exactly so" : "NOT what came out")
                           : "; no number for these times and microbatches");
  out += fmt::format("held      {:.6g} microbatches by rank\n", fmt::join(held_by_rank(t), " "));
  if (paper) {
    std::string said;
    if (!paper->held.empty()) {
      bool same = true;
      for (size_t r = 0; r < paper->held.size(); r++) same &= paper->held[r] == t.held[r].all();
      said = same ? ": exactly so" : ": NOT what came out";
    }
    out += fmt::format("published {}{}\n", paper->held_formula, said);
  }
  return out;
}

void simulate(const SimulateRequest& q) {
  const Schedule s = wanted_schedule(q);
  for (const std::string& warning : validate(s)) fmt::print(stderr, "note: {}\n", warning);
  const int ranks = int(s.ranks.size()), chunks = std::max(1, s.stages / ranks);
  const StageTimes times = simulated_times(q, chunks);
  const ScheduleTimeline t = timeline_of(s, times);
  StageTimes whole = times;
  whole.forward *= chunks, whole.input *= chunks, whole.weight *= chunks;
  std::optional<Published> paper;
  if (q.file.empty()) paper = published_of(q.schedule, ranks, chunks, s.microbatches, whole);
  const std::string title = fmt::format("{}: {} pipeline ranks, {} microbatches, times {}",
                                        q.file.empty() ? q.schedule : q.file, ranks, s.microbatches, q.times);
  const std::string text = simulate_summary(t, paper);
  if (!q.svg.empty()) write_text_atomic(q.svg, svg_of(t, title));
  if (!q.html.empty()) write_text_atomic(q.html, html_of(t, title, text));
  if (q.json) {
    nlohmann::ordered_json j = {{"ranks", ranks},
                                {"microbatches", s.microbatches},
                                {"chunks", chunks},
                                {"bubble", t.bubble.own},
                                {"bubble_makespan", t.bubble.of_makespan},
                                {"makespan", in_units(t.replay.makespan, chunks)},
                                {"idle", in_units(t.bubble.idle, chunks)},
                                {"peak_in_flight", held_by_rank(t)}};
    if (paper && paper->idle) j["published_idle"] = in_units(*paper->idle, chunks);
    fmt::print("{}\n", j.dump(2));
    return;
  }
  constexpr int kColumns = 200;
  fmt::print(
      "{}\nF forward, I gradient of the input, W of the weights, B both, . idle; small letters: later "
      "chunks\n{}{}",
      title, grid_of(t, kColumns), text);
}

}  // namespace

void add_simulate(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "simulate",
      "draws a pipeline schedule in virtual time, with its bubble and memory beside what papers say\n"
      "example: trireme simulate --schedule zb-h1 --stages 4 --microbatches 8");
  auto q = std::make_shared<SimulateRequest>();
  verb->add_option("--schedule", q->schedule,
                   "gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe, dualpipe-v")
      ->capture_default_str();
  verb->add_option("--file", q->file, "instead: a schedule of one's own, a line a rank");
  verb->add_option("--stages", q->stages, "pipeline ranks")->capture_default_str();
  verb->add_option("--microbatches", q->microbatches, "of a step")->capture_default_str();
  verb->add_option("--chunks", q->chunks, "stages a rank, of interleaved (default: 2)");
  verb->add_option("--times", q->times, "F,I,W or F,I,W,link of a rank's whole share of a microbatch")
      ->capture_default_str();
  verb->add_option("--comm", q->comm, "time of a message between ranks");
  verb->add_option("--svg", q->svg, "file to draw into");
  verb->add_option("--html", q->html, "page to draw into");
  verb->add_flag("--json", q->json, "prints JSON");
  verb->callback([q] { simulate(*q); });
}

}  // namespace trireme::cli
