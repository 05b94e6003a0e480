#include "search/one_kind.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "forecast/searched_step.h"
#include "spec/rank_kinds.h"

namespace trireme {
namespace {

constexpr std::string_view kSlowestPace = "at the slowest's pace";

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
  const int64_t asked = q.gpus[0];
  const bool mixed = used_kinds(cluster, asked).kinds.size() > 1;
  int64_t first = 0;
  for (size_t k = 0; k < cluster.kinds.size(); k++) {
    const KindSpec& kind = cluster.kinds[k];
    const int64_t has = kind.nodes * cluster.devices_per_node;
    const bool used = first < asked;
    first += has;
    if (used ? !mixed : has < asked) continue;  // the answer itself; too few
    const int64_t devices = std::min(has, asked);
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
    all.back().is_all = devices == asked;
  }
  if (!mixed) return all;
  all.push_back(best_of(std::move(alike), how));
  all.back().name = kSlowestPace;
  return all;
}

std::string alone_text(const std::vector<KindAlone>& all, double step_s) {
  const KindAlone* fastest = nullptr;
  for (const KindAlone& a : all)
    if (a.name != kSlowestPace && a.step_s > 0 && (!fastest || a.step_s < fastest->step_s)) fastest = &a;
  std::string s;
  for (const KindAlone& a : all) {
    s += s.empty() ? "" : "; ";
    if (a.name == kSlowestPace) {
      s += "all ranks at the slowest's pace " + (a.step_s > 0 ? seconds_text(a.step_s) : "do not fit");
      continue;
    }
    s += fmt::format("{} x {} alone ", a.gpus, a.name);
    s += a.step_s > 0 ? "take " + seconds_text(a.step_s) : "do not fit";
    if (&a != fastest) continue;
    const double more = 100 * (a.step_s / step_s - 1);
    const double less = 100 * (step_s / a.step_s - 1);
    if (a.is_all)
      s += more >= 0 ? fmt::format(" (+{:.1f} %)", more)
                     : fmt::format(" ({:.1f} % faster: state this [[kind]] first)", less);
    else
      s += more >= 0 ? fmt::format(" (the others add {:.1f} % speed)", more)
                     : fmt::format(" ({:.1f} % faster than with the others: leave these out)", less);
  }
  return s;
}

std::string devices_text(const SearchRequest& q) {
  const int64_t most = q.gpus.back();
  if (q.site.kinds.size() < 2) return fmt::format("{} x {}", most, q.device);
  return used_devices_text(q.site, most);
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
