#include "sim/gallery.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/find_schedule.h"
#include "sim/summary.h"

namespace trireme {
namespace {

constexpr int kGalleryRanks = 4, kGalleryMicrobatches = 8;
constexpr int64_t kWholeShare = 4;  // F, I and W of a rank's share: chunks divide it

struct Origin {
  std::string_view name, sentence;
};
constexpr Origin kOrigins[] = {
    {"gpipe",
     "Huang et al. 2019 (1811.06965), section 2.3: all forwards, then all backwards; every microbatch is "
     "held. "
     "Backwards in ascending order, as Narayanan et al. 2021 draw it in figure 3."},
    {"1f1b",
     "PipeDream-flush; Narayanan et al. 2021 (2104.04473), figure 4, top: a rank runs p-1-r forwards ahead, "
     "then "
     "one backward follows each forward, so it holds at most p - r microbatches at GPipe's bubble."},
    {"interleaved",
     "Narayanan et al. 2021, figure 4, bottom: v chunks a rank, through which microbatches pass in groups of "
     "p: "
     "1/v of the bubble, for v times the messages and a little more memory."},
    {"zb-h1",
     "Qi et al. 2024 (2401.10241), figure 3, top: 1F1B with the backward in two. The next rank waits only "
     "for the "
     "gradient of the input, and weight gradients fill the end: a third of the bubble, 1F1B's memory."},
    {"zb-h2",
     "Qi et al. 2024, figure 3, bottom: twice as many forwards ahead also fill the bubble before the first "
     "backward, for twice the memory. No rank idles between its first and last action at equal times."},
    {"zb-v",
     "Qi et al. 2024, section 6, figure 8: two chunks a rank in a V, so that a microbatch's backward begins "
     "on the "
     "rank where it entered: no bubble at equal times, with 1F1B's memory."},
    {"v-half",
     "Qi et al. 2024b (2405.15362), figure 4b: the distances inside a building block that is repeated set "
     "how long "
     "activations live; this block holds half of 1F1B's at half of its bubble."},
    {"v-min",
     "Qi et al. 2024b, figure 4a: the block that holds least, a third of 1F1B's activations; its bubble is "
     "two "
     "thirds of 1F1B's, and more where times are unequal."},
    {"dualpipe",
     "DeepSeek-V3 report (2412.19437), figure 5: microbatches enter at both ends and meet; a forward and a "
     "backward "
     "issued together hide each other's messages. Every stage is on two ranks, so weights are there twice."},
    {"dualpipe-v",
     "DeepSeek's DualPipe repository (\"cut in half\", after Sea AI Lab): DualPipe folded into a V on half "
     "the ranks, "
     "with weights once."},
    {"auto",
     "Searched rather than written down: the order in which F, I and W of every rank take least time, for "
     "times "
     "of stages that are given, here equal ones, and for so much memory, here 1F1B's (Qi et al. 2024, "
     "section 3; "
     "[how](sim.md)). `trireme simulate --schedule auto --times ... --memory ...` searches for others, and a "
     "run "
     "with `layout.schedule = \"auto\"` for its own stages."},
};

std::string_view origin_of(std::string_view name) {
  const auto* const o =
      std::find_if(std::begin(kOrigins), std::end(kOrigins), [&](auto& e) { return e.name == name; });
  return o == std::end(kOrigins) ? std::string_view() : o->sentence;
}

struct Entry {
  std::string_view name;
  ScheduleTimeline timeline;
  std::optional<Published> paper;
};

// Searched for the times of all the others, with 1F1B's memory.
Entry searched_entry() {
  const std::vector<StageTimes> times(kGalleryRanks,
                                      {.forward = kWholeShare, .input = kWholeShare, .weight = kWholeShare});
  const std::vector<HeldLimit> limits(kGalleryRanks, {.most = kGalleryRanks});
  const Schedule found = find_schedule(times, kGalleryMicrobatches, limits, Aim::step);
  return {"auto", timeline_of(found, times[0]), std::nullopt};
}

Entry entry_of(std::string_view name) {
  if (name == "auto") return searched_entry();
  const int chunks = default_chunks(name), p = kGalleryRanks, m = kGalleryMicrobatches;
  const StageTimes whole{.forward = kWholeShare, .input = kWholeShare, .weight = kWholeShare};
  const StageTimes part{
      .forward = kWholeShare / chunks, .input = kWholeShare / chunks, .weight = kWholeShare / chunks};
  return {name, timeline_of(make_schedule(name, p, chunks, m), part),
          published_of(name, p, chunks, m, whole)};
}

std::string table_row(const Entry& e) {
  const ScheduleTimeline& t = e.timeline;
  const std::vector<double> held = held_by_rank(t);
  return fmt::format("| [{0}](#{0}) | {1} | {2:.1f} % | {3:.4g} | {4} | {5:.4g} | {6} |\n", e.name, t.chunks,
                     100 * t.bubble.own, double(t.bubble.idle) / double(kWholeShare),
                     e.paper ? std::string_view(e.paper->idle_formula) : "none",
                     *std::max_element(held.begin(), held.end()),
                     e.paper ? std::string_view(e.paper->held_formula) : "at most what it may: here p");
}

std::string section_of(const Entry& e) {
  return fmt::format("\n## {0}\n\n{1}\n\n![{0}](schedules/{0}.svg)\n\n```\n{2}```\n", e.name,
                     origin_of(e.name), summary_of(e.timeline, e.paper, double(kWholeShare)));
}

}  // namespace

std::vector<GalleryFile> gallery() {
  std::string page = fmt::format(
      "# Pipeline schedules, drawn\n\n"
      "Written by `trireme simulate --gallery docs`, not by hand; a test holds it against the generators. "
      "Every "
      "schedule on {} ranks\n(p) with {} microbatches (m) and F = I = W = 1 of a rank's whole share, "
      "messages "
      "taking no time. `trireme simulate --schedule NAME`\ndraws any other case, in the terminal too.\n\n"
      "Blue: forward (F). Green: gradient of the input (I). Ochre: gradient of the weights (W). Teal: both "
      "at once "
      "(B). Grey: idle. Light:\nlater chunks. The bubble is the idle time between a rank's first and last "
      "action, of "
      "the rank where it is largest; held are microbatches\nbetween forward and weight gradient, on the rank "
      "that "
      "holds most. What the words mean: [schedule](schedule.md), [sim](sim.md).\n\n"
      "| schedule | chunks | bubble | idle | published | held | published |\n|---|---|---|---|---|---|---|\n",
      kGalleryRanks, kGalleryMicrobatches);
  std::vector<GalleryFile> files;
  std::string sections;
  std::vector<std::string_view> names(schedule_names().begin(), schedule_names().end());
  names.push_back("auto");
  for (std::string_view name : names) {
    const Entry e = entry_of(name);
    page += table_row(e), sections += section_of(e);
    const std::string title =
        fmt::format("{}: {} ranks, {} microbatches", name, kGalleryRanks, kGalleryMicrobatches);
    files.push_back({fmt::format("schedules/{}.svg", name), svg_of(e.timeline, title)});
  }
  files.push_back({"schedules.md", page + sections});
  return files;
}

}  // namespace trireme
