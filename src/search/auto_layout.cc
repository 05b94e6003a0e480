#include "search/auto_layout.h"

#include <algorithm>

#include "base/error.h"
#include "base/progress.h"
#include "base/timed.h"
#include "base/units.h"
#include "forecast/own_schedule.h"
#include "forecast/recompute.h"
#include "search/search.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

// Rank threads of one machine, as the closed forms see it. They rank here and decide nothing: room for all,
// and constants of a CPU whose launches and collectives cost little.
SearchRequest request_of(const RunSpec& run, const AutoWish& wish, const ClusterSpec& cluster) {
  SearchRequest q;
  q.model = run.model, q.seq = run.data.seq_len, q.name = run.model.arch, q.device = cluster.name;
  q.gpus = {wish.ranks}, q.globals = {run.batch.global};
  q.require = wish.require;
  const auto known = [](double v, double otherwise) { return v > 0 ? v : otherwise; };
  const double peak =
      known(cluster.peak_flops(run.precision.compute == "auto" ? "f32" : run.precision.compute),
            known(cluster.peak.f32, 1e11));
  constexpr double kRoom = 1e18, kAttention = 0.4, kShort = 32;
  q.figures = {.bf16 = peak,
               .memory = kRoom,
               .bandwidth = known(cluster.memory_bandwidth, 1e10),
               .bus = known(cluster.intra_node.bandwidth, 5e9),
               .near = double(wish.ranks),
               .nic = 1e9,
               .attention = kAttention * peak,
               .k0 = kShort,
               .m0 = kShort,
               .n0 = kShort};
  q.fits.fill(1);
  q.fits[size_t(Fit::host)] = q.fits[size_t(Fit::host_moe)] = q.fits[size_t(Fit::each)] = 1e-5;
  q.fits[size_t(Fit::step)] = 1e-4, q.fits[size_t(Fit::ring)] = 1e-5;
  q.fits[size_t(Fit::jitter)] = q.fits[size_t(Fit::base)] = 1e-9;
  return q;
}

void add_once(std::vector<SearchLayout>& all, const SearchLayout& l) {
  if (std::find(all.begin(), all.end(), l) == all.end()) all.push_back(l);
}

// The best of the fastest divisions, and from the front the leaner and leaner.
std::vector<SearchLayout> layouts_to_book(const SearchRequest& q) {
  constexpr size_t kFastest = 8, kLeaner = 6;
  const SearchResult r = search(q);
  if (r.candidates == 0 && !q.require.empty()) bad_request("{}", unmet_text(q.require, r.unmet));
  std::vector<SearchLayout> all;
  for (size_t i = 0; i < std::min(kFastest, r.divisions.size()); i++) add_once(all, r.divisions[i].layout);
  const size_t n = std::min(kLeaner, r.front.size());
  for (size_t i = 0; i < n; i++)
    add_once(all, r.front[n == 1 ? 0 : i * (r.front.size() - 1) / (n - 1)].layout);
  return all;
}

std::vector<RunSpec> candidates_of(const RunSpec& run, const AutoWish& wish, const ClusterSpec& cluster) {
  std::vector<RunSpec> all;
  if (wish.layout) {
    for (const SearchLayout& l : layouts_to_book(request_of(run, wish, cluster)))
      all.push_back(with_layout(run, l));
  } else {
    const int64_t replica = run.batch.global / run.layout.dp;
    for (int64_t micro = replica; micro >= 1; micro--) {
      if (replica % micro != 0) continue;
      all.push_back(run);
      all.back().batch.micro = micro;
    }
  }
  std::erase_if(all, [](const RunSpec& r) { return !problems_of(r).empty() || !unsupported_of(r).empty(); });
  return all;
}

std::string text_of_run(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  std::string s;
  for (const auto& [name, n] :
       {std::pair{"dp", l.dp}, {"tp", l.tp}, {"pp", l.pp}, {"cp", l.cp}, {"ep", l.ep}})
    if (n > 1) s += fmt::format("{} = {}, ", name, n);
  if (l.zero > 0) s += fmt::format("zero = {}, ", l.zero);
  if (l.shard_group > 0) s += fmt::format("shard_group = {}, ", l.shard_group);
  if (l.pp > 1) s += fmt::format("schedule = \"{}\", chunks = {}, ", l.schedule, l.chunks);
  if (l.recompute != "none") s += fmt::format("recompute = \"{}\", ", l.recompute);
  return s + fmt::format("batch.micro = {}", run.batch.micro);
}

// As plan and train prepare it, a schedule and recompute that are chosen included. false: the layout cannot
// be, for the reason that `refused` then says; the others may.
bool book(TriedLayout& t, const ClusterSpec& cluster, int threads, std::string& refused) {
  try {
    RunSpec run = t.run;
    find_own_schedule(run, cluster);
    run = choose_recompute(run, cluster, threads);
    const Forecast f = forecast(run, schedule_of(run), cluster, threads);
    t.step_s = f.step_s, t.bytes = f.host_bytes(), t.fits = f.fits;
    t.roof_s = f.roof_s;
    t.expected = f.expected;
    return true;
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
    refused = e.what();
    return false;
  }
}

}  // namespace

AutoChoice choose_layout(const RunSpec& run, const AutoWish& wish, const ClusterSpec& cluster, int threads,
                         const Facts& facts) {
  require(wish.any(), "a layout chosen that nobody asked for");
  AutoChoice out;
  const double begin = now_s();
  std::string refused;
  for (const RunSpec& c : candidates_of(run, wish, cluster)) {
    TriedLayout t{.run = resolve(c, facts), .asked = c, .text = text_of_run(c)};
    if (book(t, cluster, threads, refused)) out.tried.push_back(std::move(t));
  }
  out.seconds = now_s() - begin;
  const TriedLayout* best = nullptr;
  for (const TriedLayout& t : out.tried)
    if (t.fits && (!best || t.step_s < best->step_s)) best = &t;
  if (best) {
    out.best = size_t(best - out.tried.data());
    return out;
  }
  const std::string asked = wish.layout ? "layout = \"auto\"" : "batch.micro = \"auto\"";
  if (out.tried.empty() && !refused.empty())
    bad_request("{}: no layout can be booked; the last that was looked at: {}", asked, refused);
  if (out.tried.empty())
    bad_request(
        "{}: no layout of {} ranks divides batch.global = {} and the model; give another batch.global, or "
        "the layout itself",
        asked, wish.ranks, run.batch.global);
  const auto leanest = std::min_element(out.tried.begin(), out.tried.end(),
                                        [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  bad_request(
      "{}: none of {} layouts fits; the leanest ({}) takes {} a rank, and each of {} ranks has {}; "
      "give a shorter data.seq_len, a smaller model, or fewer ranks",
      asked, out.tried.size(), leanest->text, exact_bytes(leanest->bytes), wish.ranks,
      exact_bytes(cluster.memory_bytes / std::max<int64_t>(1, wish.ranks)));
}

std::string to_text(const AutoChoice& c) {
  const TriedLayout& best = c.tried[c.best];
  std::string s =
      fmt::format("layout chosen of {} booked on meta in {:.1f} s: {}", c.tried.size(), c.seconds, best.text);
  if (best.step_s > 0) s += fmt::format("; {:.4f} s a step", best.step_s);
  s += fmt::format(", {} a rank", human_bytes(best.bytes));
  for (const TriedLayout& t : c.tried)
    if (&t != &best)
      s += fmt::format("\n  not {}: {}", t.text,
                       t.fits ? fmt::format("{:.4f} s a step, {}", t.step_s, human_bytes(t.bytes))
                              : fmt::format("does not fit, {}", human_bytes(t.bytes)));
  return s;
}

std::string answer_text(const AutoChoice& c, const ClusterSpec& cluster, bool all) {
  constexpr size_t kOthers = 2;
  const TriedLayout& best = c.tried[c.best];
  std::vector<const TriedLayout*> others;
  for (const TriedLayout& t : c.tried)
    if (&t != &best) others.push_back(&t);
  std::stable_sort(others.begin(), others.end(), [](const TriedLayout* a, const TriedLayout* b) {
    return a->fits != b->fits ? a->fits : a->step_s < b->step_s;
  });
  const size_t fits =
      size_t(std::count_if(c.tried.begin(), c.tried.end(), [](const auto& t) { return t.fits; }));
  std::string s = answer_line("layout", best.text);
  if (best.step_s > 0)
    s += fmt::format("  step        {}\n",
                     best.expected ? fmt::format("{} expected, as kernels were measured [bound {}]",
                                                 seconds_text(best.step_s), seconds_text(best.roof_s))
                                   : fmt::format("[bound {}]; `trireme bench` measures kernels",
                                                 seconds_text(best.step_s)));
  s += fmt::format("  memory      {} of a rank; {} ranks share {}\n", bytes_text(double(best.bytes)),
                   best.run.world(), capacity_text(double(cluster.memory_bytes)));
  s += "alternatives\n";
  if (others.empty()) s += "  none divides the model and the batch\n";
  for (size_t i = 0; i < others.size() && (all || i < kOthers); i++)
    s +=
        fmt::format("  {}, {}: {}{}\n", seconds_text(others[i]->step_s), bytes_text(double(others[i]->bytes)),
                    others[i]->text, others[i]->fits ? "" : " (does not fit)");
  return s + fmt::format("  searched    {} of {} booked layouts fit, in {}\n", fits, c.tried.size(),
                         seconds_text(c.seconds));
}

}  // namespace trireme
