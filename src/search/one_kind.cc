#include "search/one_kind.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "forecast/searched_step.h"

namespace trireme {
namespace {

// Seconds of the best layout's step, replayed.
KindAlone best_of(SearchRequest q, ConfirmRequest how) {
  KindAlone alone{.name = q.device, .gpus = q.gpus[0]};
  how.most = 1;
  how.progress = nullptr;
  how.by.device = q.device;
  q.best = kept_to_confirm(q);
  q.held_more.clear();
  q.booked_more.clear();
  SearchResult r;
  const Confirmation all = search_and_confirm(q, r, how);
  if (r.best.empty()) return alone;
  const Priced& best = r.best.front();
  const Confirmed* found = all.of(best.layout);
  if (found && !found->holds()) return alone;
  alone.step_s = found && found->step_s > 0 ? found->step_s : best.time.total;
  alone.layout = text_of(best.layout);
  return alone;
}

}  // namespace

std::vector<KindAlone> kinds_alone(const SearchRequest& q, const ConfirmRequest& how) {
  std::vector<KindAlone> all;
  if (!q.kinds || q.gpus.size() != 1 || q.globals.size() != 1) return all;
  const ClusterSpec& cluster = q.kinds->cluster();
  SearchRequest alike = q;
  alike.kinds = nullptr;
  int64_t first = 0;
  for (size_t k = 0; k < cluster.kinds.size() && first < q.gpus[0]; k++) {
    const KindSpec& kind = cluster.kinds[k];
    const int64_t devices = std::min(kind.nodes * cluster.devices_per_node, q.gpus[0] - first);
    first += devices;
    ClusterSpec one = with_kinds(cluster, k, k);
    one.kinds.clear();
    one.name = kind.name;
    one.nodes = kind.nodes;
    SubjectDevice d = device_of(one, "bf16", devices);
    complete_figures(d, devices, "kind");
    SearchRequest of = alike;
    of.gpus = {devices};
    of.device = d.name;
    of.figures = d.figures;
    of.fits = q.kinds->at(int64_t(k * cluster.kinds.size() + k)).fits;
    of.site = d.site;
    if (of.disk > 0) of.disk = of.disk_each_way ? d.host : d.disk;
    all.push_back(best_of(std::move(of), how));
    all.back().name = kind.name;
  }
  if (all.size() < 2) return {};
  all.push_back(best_of(std::move(alike), how));
  all.back().name = "at the slowest's pace";
  return all;
}

std::string alone_text(const std::vector<KindAlone>& all, double step_s) {
  if (all.empty()) return "";
  const auto kinds = all.end() - 1;
  const auto fastest = std::min_element(all.begin(), kinds, [](const KindAlone& a, const KindAlone& b) {
    return a.step_s > 0 && (b.step_s == 0 || a.step_s < b.step_s);
  });
  std::string s;
  for (auto a = all.begin(); a != kinds; a++) {
    s += fmt::format("{}{} x {} alone ", s.empty() ? "" : "; ", a->gpus, a->name);
    s += a->step_s > 0 ? "take " + seconds_text(a->step_s) : "do not fit";
    if (a != fastest || a->step_s == 0) continue;
    const double more = 100 * (a->step_s / step_s - 1);
    s += more >= 0 ? fmt::format(" (the others add {:.1f} % speed)", more)
                   : fmt::format(" ({:.1f} % faster than with the others: leave these out)",
                                 100 * (step_s / a->step_s - 1));
  }
  const KindAlone& alike = all.back();
  if (alike.step_s > 0) s += fmt::format("; all ranks at the slowest's pace {}", seconds_text(alike.step_s));
  return s;
}

std::string devices_text(const SearchRequest& q) {
  if (!q.kinds) return q.device;
  std::string s;
  for (const KindSpec& k : q.kinds->cluster().kinds) s += (s.empty() ? "" : " + ") + k.name;
  return s;
}

nlohmann::ordered_json json_of(const std::vector<KindAlone>& all) {
  nlohmann::ordered_json j = nlohmann::ordered_json::array();
  for (const KindAlone& a : all) {
    nlohmann::ordered_json one = {{"devices", a.name}, {"gpus", a.gpus}, {"step_s", nullptr}};
    if (a.step_s > 0) {
      one["step_s"] = a.step_s;
      one["layout"] = a.layout;
    }
    j.push_back(one);
  }
  return j;
}

}  // namespace trireme
