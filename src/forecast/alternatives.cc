#include "forecast/alternatives.h"

#include <algorithm>

#include "base/error.h"
#include "forecast/scaled_run.h"
#include "forecast/searched_step.h"
#include "runtime/composed_booking.h"
#include "spec/rank_kinds.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

constexpr size_t kAlternatives = 2;

struct Neighbour {
  std::string change;
  SearchLayout layout;
};

void add_degree(const SearchLayout& l, int64_t SearchLayout::*axis, const char* name,
                std::vector<Neighbour>& all) {
  const auto add = [&](const SearchLayout& n) {
    all.push_back({fmt::format("layout.{} = {} with layout.dp = {}", name, n.*axis, n.dp), n});
  };
  SearchLayout n = l;
  if (l.dp % 2 == 0) {
    n.*axis *= 2;
    n.dp /= 2;
    if (l.schedule == "1f1b") add(n);
  }
  n = l;
  if (l.*axis % 2 == 0) {
    n.*axis /= 2;
    n.dp *= 2;
    if (n.pp > 1 || l.schedule == "1f1b") add(n);
  }
}

std::vector<Neighbour> neighbours_of(const SearchLayout& l) {
  std::vector<Neighbour> all;
  SearchLayout n = l;
  for (const Again again : {Again::none, Again::selective, Again::full}) {
    n.again = again;
    if (again != l.again) all.push_back({fmt::format("layout.recompute = \"{}\"", name_of(again)), n});
  }
  n = l;
  for (int zero = 0; zero <= 3 && l.dp * l.cp > 1; zero++) {
    n.zero = zero;
    n.shards = 0;
    if (zero != l.zero) all.push_back({fmt::format("layout.zero = {}", zero), n});
  }
  for (const int64_t micro : {l.micro / 2, l.micro * 2}) {
    n = l;
    n.micro = micro;
    if (micro > 0 && l.global % (l.dp * micro) == 0)
      all.push_back({fmt::format("batch.micro = {}", micro), n});
  }
  add_degree(l, &SearchLayout::tp, "tp", all);
  add_degree(l, &SearchLayout::pp, "pp", all);
  return all;
}

bool runs(const RunSpec& run, const LayoutCase& q, const SearchLayout& l) {
  if (division_refusal(q.model, q.seq, l) != Refusal::count) return false;
  if (l.global % (l.dp * l.micro) != 0) return false;
  const RunSpec changed = with_layout(run, l, q.disk_each_way);
  return problems_of(changed).empty() && unsupported_of(changed).empty();
}

// As `plan` of the changed run: its replayed step, and the arena with drivers and libraries. Nothing: it is
// too large.
std::optional<Alternative> planned(const Neighbour& n, const RunSpec& run, const LayoutCase& q,
                                   const ClusterSpec& cluster, const PricedBy& by) {
  const RunSpec changed = resolve(with_layout(run, n.layout, q.disk_each_way), {.native_bf16 = true});
  Alternative a{.change = n.change};
  int64_t arena = 0;
  const NumberList memory = memory_of_ranks(cluster, changed.layout);
  for (const StageArena& s :
       largest_arenas(changed, schedule_of(changed), 1, {}, kEndlessArena, interned(memory))) {
    const double device = memory.empty() ? q.figures.memory : double(memory[size_t(s.pp_rank)]);
    if (double(s.bytes) + beside_bytes(changed) > device) return std::nullopt;
    arena = std::max(arena, s.bytes);
  }
  a.bytes = double(arena) + beside_bytes(changed);
  const std::optional<SearchedStep> step = searched_step(changed, cluster, by);
  if (!step) return std::nullopt;
  a.step_s = step->step_s;
  if (changed.layout.sequence != run.layout.sequence)
    a.change += fmt::format(" and layout.sequence = {}", changed.layout.sequence);
  return a;
}

}  // namespace

void find_alternatives(Forecast& f, const RunSpec& run, const ClusterSpec& cluster) {
  if (!f.closed_form || !f.fits || !f.without.empty()) return;
  SubjectDevice d = device_of(cluster, "bf16", run.world());
  complete_figures(d, run.world(), "cluster.file");
  const LayoutCase q = layout_case_of(run, d, f.by);
  const std::optional<SearchLayout> l = layout_of(run);
  if (!l) return;
  std::vector<std::pair<double, const Neighbour*>> by_bound;
  const std::vector<Neighbour> all = neighbours_of(*l);
  for (const Neighbour& n : all) {
    if (!runs(run, q, n.layout)) continue;
    const Priced p = price_layout(q, n.layout);
    if (p.memory.used() <= q.figures.memory) by_bound.emplace_back(p.time.total, &n);
  }
  std::stable_sort(by_bound.begin(), by_bound.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [bound, n] : by_bound) {
    if (f.alternatives.size() == kAlternatives) break;
    if (const std::optional<Alternative> a = planned(*n, run, q, cluster, f.by)) f.alternatives.push_back(*a);
  }
  std::stable_sort(f.alternatives.begin(), f.alternatives.end(),
                   [](const Alternative& a, const Alternative& b) { return a.step_s < b.step_s; });
}

}  // namespace trireme
