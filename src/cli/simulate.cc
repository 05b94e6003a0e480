// trireme simulate: a pipeline schedule in virtual time, drawn and held against what papers say of it; a run
// of any size (cli/simulate_run.h).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/counted.h"
#include "base/file.h"
#include "base/json.h"
#include "base/say.h"
#include "cli/cli.h"
#include "cli/simulate_run.h"
#include "cli/used_keys.h"
#include "sim/find_schedule.h"
#include "sim/gallery.h"
#include "sim/summary.h"
#include "sim/traced_stages.h"
#include "spec/suggest.h"
#include "trace/chrome_trace.h"

namespace trireme::cli {
namespace {

struct SimulateRequest {
  std::string schedule = "1f1b", file, times = "1,1,1", times_of, svg, html, out, gallery, memory,
              aim = "step";
  int stages = 4, microbatches = 8;
  std::optional<int> chunks;  // none: the schedule's own
  double comm = 0;
  bool json = false;
  std::optional<TracedStages> traced;  // of times_of
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

std::vector<double> numbers_of(std::string_view list, const std::string& all) {
  const std::string_view whole = list;
  std::vector<double> t;
  while (true) {
    double one = 0;
    const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), one);
    const bool more = end != list.data() + list.size();
    if (error != std::errc() || (more && *end != ','))
      bad_request("--times: \"{}\" is not F,I,W or F,I,W,link, such as 1,1,1 or 18.5,18.1,9.3,0.6", all);
    t.push_back(one);
    if (!more) break;
    list.remove_prefix(size_t(end - list.data()) + 1);
  }
  if (t.size() != 3 && t.size() != 4)
    bad_request("--times: \"{}\" has {} times; right are F,I,W or F,I,W,link", whole, t.size());
  return t;
}

// Of a stage, times multiplied by `link_parts` for the link and left for the rest.
StageTimes stage_times(const SimulateRequest& q, std::string_view list, int parts, int link_parts) {
  const std::vector<double> t = numbers_of(list, q.times);
  if (t.size() == 4 && q.comm > 0)
    bad_request("--comm: --times \"{}\" has a link's time already; give one", q.times);
  StageTimes s{.forward = parts_of(t[0], "--times") * parts,
               .input = parts_of(t[1], "--times") * parts,
               .weight = parts_of(t[2], "--times") * parts};
  if (s.forward + s.input + s.weight == 0) bad_request("--times: \"{}\" takes no time at all", list);
  s.send = (t.size() == 4 ? parts_of(t[3], "--times") : parts_of(q.comm, "--comm")) * link_parts;
  return s;
}

// In thousandths of a chunk's part: "F,I,W" or "F,I,W,link" of every rank's whole share, which are the times
// of one of its chunks multiplied by chunks; or one such list for each stage, of that stage alone.
std::vector<StageTimes> simulated_times(const SimulateRequest& q, int chunks, int stages) {
  if (q.traced) {
    if (chunks != 1 || stages != int(q.traced->times.size()))
      bad_request("--times-of: the trace has {}, one a rank, and the schedule {} and {} a rank",
                  counted(q.traced->times.size(), "stage"), stages, chunks);
    return q.traced->times;
  }
  if (q.times.find('/') == std::string::npos) return {stage_times(q, q.times, 1, chunks)};
  std::vector<StageTimes> all;
  for (std::string_view rest = q.times;;) {
    const size_t end = rest.find('/');
    all.push_back(stage_times(q, rest.substr(0, end), chunks, chunks));
    if (end == rest.npos) break;
    rest.remove_prefix(end + 1);
  }
  if (int(all.size()) != stages)
    bad_request("--times: \"{}\" has times of {} stages; right is one list for all, or one for each of {}",
                q.times, all.size(), stages);
  return all;
}

// "24GB", "1.5MB": bytes, in units of 1000; none if it has no unit.
std::optional<int64_t> bytes_of(std::string_view text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
  for (const auto& [unit, size] : kUnits) {
    if (!text.ends_with(unit)) continue;
    double x = 0;
    const char* const last = text.data() + text.size() - unit.size();
    const auto [end, error] = std::from_chars(text.data(), last, x);
    if (error == std::errc() && end == last && x > 0 && x <= 1e6) return std::llround(x * size);
  }
  return std::nullopt;
}

// Of a microbatch as a trace has it; `most` is bytes, or microbatches of each stage's own.
std::vector<HeldLimit> traced_limits(const SimulateRequest& q) {
  std::vector<HeldLimit> limits = q.traced->held;
  const std::optional<int64_t> bytes = bytes_of(q.memory);
  double microbatches = double(limits.size());
  if (!bytes && !q.memory.empty()) {
    const char* const last = q.memory.data() + q.memory.size();
    const auto [end, error] = std::from_chars(q.memory.data(), last, microbatches);
    if (error != std::errc() || end != last || !(microbatches >= 1 && microbatches <= 1e6))
      bad_request(
          "--memory: \"{}\" is neither bytes nor microbatches; with --times-of right is 24GB (kB, MB, GB), "
          "or "
          "a number of microbatches from 1",
          q.memory);
  }
  for (size_t s = 0; s < limits.size(); s++) {
    HeldLimit& l = limits[s];
    l.most = bytes ? *bytes : int64_t(microbatches * double(l.before_input));
    if (l.most < l.before_input)
      bad_request("--memory: {} leaves no room for a microbatch, of which stage {} takes {:.4g} MB", q.memory,
                  s, double(l.before_input) * 1e-6);
  }
  return limits;
}

// "M" or "M,W": what a rank may hold, in microbatches, and the part of one that waits for its weight
// gradient.
HeldLimit held_limit(const SimulateRequest& q) {
  constexpr int64_t kOne = 1000;
  const auto parts = [&](std::string_view text) {
    double x = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
    if (error != std::errc() || end != text.data() + text.size() || !(x >= 0 && x <= 1e6))
      bad_request(
          "--memory: \"{}\" is not M or M,W, such as 4 or 16,0.37: microbatches from 1 to 1000000, W from "
          "0 to 1 of one",
          q.memory);
    return std::llround(x * double(kOne));
  };
  HeldLimit l{.most = q.stages * kOne, .before_input = kOne, .before_weight = kOne};
  if (q.memory.empty()) return l;
  if (bytes_of(q.memory))
    bad_request(
        "--memory: {} is bytes, and what a microbatch takes is not known; give --times-of TRACE, or "
        "microbatches",
        q.memory);
  const std::string_view all = q.memory;
  const size_t comma = std::min(all.find(','), all.size());
  l.most = parts(all.substr(0, comma));
  if (comma < all.size()) l.before_weight = parts(all.substr(comma + 1));
  if (l.most < kOne)
    bad_request("--memory: {} leaves no room for a microbatch; right is at least 1", q.memory);
  if (l.before_weight > kOne)
    bad_request("--memory: \"{}\" holds more of a microbatch after its input gradient than before", q.memory);
  return l;
}

Schedule searched_schedule(const SimulateRequest& q) {
  constexpr int kMostRanks = 1024, kMostMicrobatches = 32767;
  if (q.stages < 1 || q.stages > kMostRanks)
    bad_request("--stages: {}; the search takes 1 to {}", q.stages, kMostRanks);
  if (q.microbatches < 1 || q.microbatches > kMostMicrobatches)
    bad_request("--microbatches: {} must be from 1 to {}", q.microbatches, kMostMicrobatches);
  if (q.chunks.value_or(1) != 1)
    bad_request("--chunks: {}; the search takes 1 (one stage a rank)", *q.chunks);
  std::vector<StageTimes> times = simulated_times(q, 1, q.stages);
  times.resize(size_t(q.stages), times[0]);
  const std::vector<HeldLimit> limits =
      q.traced ? traced_limits(q) : std::vector<HeldLimit>(times.size(), held_limit(q));
  return find_schedule(times, q.microbatches, limits, q.aim == "span" ? Aim::span : Aim::step);
}

void know_schedule(const std::string& name) {
  std::vector<std::string> names(schedule_names().begin(), schedule_names().end());
  names.push_back("auto");
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  const std::string near = suggest(name, names);
  bad_request("--schedule: {} is unknown{}; schedules are {}", name,
              near.empty() ? "" : fmt::format(", did you mean {}?", near),
              joined(std::vector<std::string_view>(names.begin(), names.end())));
}

Schedule wanted_schedule(const SimulateRequest& q) {
  if (q.file.empty()) know_schedule(q.schedule);
  if (q.file.empty() && q.schedule == "auto") return searched_schedule(q);
  if (!q.memory.empty()) bad_request("--memory: only --schedule auto looks at it");
  if (!q.file.empty()) return parse_schedule(read_text(q.file));
  const int chunks = q.chunks ? *q.chunks : default_chunks(q.schedule);
  return make_schedule(q.schedule, q.stages, chunks, q.microbatches);
}

bool compute_alone(const Schedule& s) {
  for (const std::vector<Action>& actions : s.ranks)
    for (const Action& a : actions)
      if (a.kind >= Act::SendF) return false;
  return true;
}

void write_gallery(const std::filesystem::path& folder) {
  for (const GalleryFile& f : gallery()) {
    std::filesystem::create_directories((folder / f.path).parent_path());
    write_text_atomic(folder / f.path, f.text);
  }
  print_text("{} and the pictures in {}\n", (folder / "schedules.md").string(),
             (folder / "schedules").string());
}

void read_times(SimulateRequest& q, bool microbatches_too) {
  if (q.times_of.empty()) return;
  const Timeline trace = read_chrome_trace(q.times_of);
  try {
    q.traced = traced_stages(trace.spans);
  } catch (const Error& e) {
    throw Error(fmt::format("--times-of {}: {}", q.times_of, e.what()), e.fault);
  }
  q.stages = int(q.traced->times.size());
  if (microbatches_too) q.microbatches = q.traced->microbatches;
}

// Its text, with where it comes from above it.
void write_schedule(const SimulateRequest& q, const Schedule& s, const std::string& title) {
  std::string about = title;
  std::replace(about.begin(), about.end(), '\n', ' ');
  write_text_atomic(q.out, fmt::format("# {}\n{}", about, to_text(s)));
}

void simulate(const SimulateRequest& q) {
  if (!q.gallery.empty()) return write_gallery(q.gallery);
  const Schedule s = wanted_schedule(q);
  for (const std::string& warning : validate(s)) say("note: {}\n", warning);
  if (!q.file.empty() && s.ranks.size() > 1 && compute_alone(s)) validate(add_transfers(s));
  const int ranks = int(s.ranks.size()), chunks = std::max(1, s.stages / ranks);
  const std::vector<StageTimes> times = simulated_times(q, chunks, s.stages);
  const ScheduleTimeline t = timeline_of_stages(s, times);
  constexpr double kMillisecond = 1e6;  // of a trace's nanoseconds
  const double unit = q.traced ? kMillisecond : double(kParts * chunks);
  std::optional<Published> paper;
  if (q.file.empty() && !q.traced && times.size() == 1) {
    StageTimes whole = times[0];
    whole.forward *= chunks, whole.input *= chunks, whole.weight *= chunks;
    paper = published_of(q.schedule, ranks, chunks, s.microbatches, whole);
  }
  const std::string title = fmt::format(
      "{}: {}, {}, times {}", q.file.empty() ? q.schedule : q.file, counted(ranks, "pipeline rank"),
      counted(s.microbatches, "microbatch", "microbatches"), q.traced ? "in ms of " + q.times_of : q.times);
  const std::string text = summary_of(t, paper, unit);
  if (!q.out.empty()) write_schedule(q, s, title);
  if (!q.svg.empty()) write_text_atomic(q.svg, svg_of(t, title));
  if (!q.html.empty()) write_text_atomic(q.html, html_of(t, title, text));
  if (q.json) {
    nlohmann::ordered_json j = {{"ranks", ranks},
                                {"microbatches", s.microbatches},
                                {"chunks", chunks},
                                {"bubble", t.bubble.own},
                                {"bubble_makespan", t.bubble.of_makespan},
                                {"makespan", double(t.replay.makespan) / unit},
                                {"idle", double(t.bubble.idle) / unit},
                                {"peak_in_flight", held_by_rank(t)}};
    if (paper && paper->idle) j["published_idle"] = double(*paper->idle) / unit;
    print_text("{}\n", j.dump(2));
    return;
  }
  constexpr int kColumns = 200;
  print_text("{}\n{}\n{}{}", title, grid_legend(), grid_of(t, kColumns), text);
}

}  // namespace

void add_simulate(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "simulate",
      "draws a pipeline schedule in virtual time, with its bubble and memory beside what papers say; or a "
      "run of\n"
      "any size, rank by rank: what each does when, and what it waits for\n"
      "example: trireme simulate --schedule zb-h1 --stages 4 --microbatches 8\n"
      "example: trireme simulate --model llama3-405B --cluster H100 --layout \"tp=8 pp=16 dp=128 "
      "zero=2 schedule=1f1b micro=1 global=2048 seq=8192 sequence=true\"");
  auto q = std::make_shared<SimulateRequest>();
  auto at_scale = std::make_shared<SimulateRunRequest>();
  const std::vector<CLI::Option*> of_a_run = at_scale->add_to(*verb);
  auto* const schedule = verb->add_option("--schedule", q->schedule,
                                          "gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, "
                                          "dualpipe, dualpipe-v, or auto: searched for the times")
                             ->capture_default_str();
  auto* const file = verb->add_option("--file", q->file, "instead: a schedule of one's own, a line a rank");
  auto* const stages = verb->add_option("--stages", q->stages, "pipeline ranks")->capture_default_str();
  auto* const microbatches =
      verb->add_option("--microbatches", q->microbatches, "of a step")->capture_default_str();
  auto* const chunks = verb->add_option("--chunks", q->chunks, "stages a rank, of interleaved (default: 2)");
  file->excludes(schedule)->excludes(stages)->excludes(microbatches)->excludes(chunks);
  auto* const times =
      verb->add_option(
              "--times", q->times,
              "F,I,W or F,I,W,link of a rank's whole share of a microbatch; or of each stage, with / between")
          ->capture_default_str();
  auto* const times_of =
      verb->add_option(
              "--times-of", q->times_of,
              "instead: measured times of each stage, from the trace of a run whose backwards are split "
              "(zb-h1, ...); stages and microbatches are its own")
          ->excludes(times)
          ->excludes(stages);
  auto* const memory = verb->add_option(
      "--memory", q->memory,
      "auto: M or M,W: microbatches that a rank may hold, and the part of one between I and W (default: "
      "stages,1); with --times-of M, or bytes of activations: 24GB");
  auto* const aim =
      verb->add_option("--aim", q->aim,
                       "auto: the shortest step, or the shortest span of a rank as papers count")
          ->check(CLI::IsMember({"step", "span"}))
          ->capture_default_str();
  auto* const comm = verb->add_option("--comm", q->comm, "time of a message between ranks");
  times_of->excludes(comm);
  auto* const out = verb->add_option(
      "--out", q->out, "file for the schedule's text: what layout.schedule = \"file\" and --file take");
  verb->add_option("--svg", q->svg, "file to draw into");
  verb->add_option("--html", q->html, "page to draw into");
  auto* const gallery =
      verb->add_option("--gallery", q->gallery,
                       "instead: writes schedules.md and a picture of every schedule into this folder");
  verb->add_flag("--json", q->json, "prints JSON");
  for (CLI::Option* mine :
       {schedule, file, stages, microbatches, chunks, times, times_of, memory, aim, comm, out, gallery})
    for (CLI::Option* other : of_a_run) mine->excludes(other);
  verb->callback([q, at_scale, microbatches] {
    if (!at_scale->wanted()) {
      at_scale->refuse_alone();
      read_times(*q, microbatches->count() == 0);
      return simulate(*q);
    }
    check_set_keys("simulate", at_scale->run);
    at_scale->svg = q->svg, at_scale->html = q->html, at_scale->run.json = q->json;
    simulate_run(*at_scale);
  });
}

}  // namespace trireme::cli
