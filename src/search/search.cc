#include "search/search.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/divisors.h"
#include "base/error.h"
#include "base/timed.h"
#include "cost/flops.h"
#include "search/division_search.h"

namespace trireme {
namespace {

// Divisions of so many devices, each to `run`; what does not divide is counted.
class Divisions {
 public:
  Divisions(const SearchRequest& q, SearchResult& out, DivisionSearch& inner)
      : q_(q), out_(out), inner_(inner) {}
  void of(int64_t gpus, int64_t global) {
    SearchLayout l{.gpus = gpus, .global = global};
    for (const int64_t tp : divisors_of(gpus))
      for (const int64_t pp : divisors_of(gpus / tp))
        for (const int64_t cp : divisors_of(gpus / tp / pp)) {
          l.tp = tp, l.pp = pp, l.cp = cp, l.dp = gpus / tp / pp / cp;
          experts(l);
        }
  }

 private:
  void experts(SearchLayout l) {
    const int64_t ranks = l.dp * l.cp * l.tp;
    const Refusal whole = division_refusal(q_.model, q_.seq, l);
    if (whole != Refusal::count) return refuse(l, whole);
    if (!q_.model.moe()) return price(l);
    for (const int64_t ep : divisors_of(ranks)) {
      l.ep = ep;
      const Refusal r = division_refusal(q_.model, q_.seq, l);
      r == Refusal::count ? price(l) : refuse(l, r);
    }
  }
  void price(const SearchLayout& l) {
    if (!meets(q_.require, RequirementLevel::division, l, out_.unmet)) return;
    out_.divisions_seen++;
    inner_.run(l);
  }
  void refuse(const SearchLayout& l, Refusal r) {
    RejectedValues unused;
    if (!meets(q_.require, RequirementLevel::division, l, unused)) return;
    out_.divisions_seen++;
    Refused& no = out_.refused[size_t(r)];
    if (no.divisions++ == 0) no.nearest = l;
    out_.rejected.push_back({l, r});
  }
  const SearchRequest& q_;
  SearchResult& out_;
  DivisionSearch& inner_;
};

[[noreturn]] void too_slow(const SearchRequest& q) {
  bad_request("a step of more than {:.0e} s on {}: its peaks and bandwidths cannot be right",
              kMostStepSeconds, q.device);
}

}  // namespace

void cut_front(const SearchRequest& q, SearchResult& r) {
  if (r.front.empty()) return;
  double least = INFINITY;
  for (const Priced& p : r.front) least = std::min(least, seconds_of(q, p));
  r.front_cut += int64_t(
      std::erase_if(r.front, [&](const Priced& p) { return seconds_of(q, p) > kFrontTimes * least; }));
}

SearchResult search(const SearchRequest& q) {
  require(!q.gpus.empty() && !q.globals.empty() && q.seq > 0 && q.best > 0, "a search of nothing");
  SearchResult out;
  const double begin = now_s();
  const std::shared_ptr<StepBound> bound = bound_of(q);
  const std::shared_ptr<RankBytes> bytes = q.software.taped() ? bytes_of(q) : nullptr;
  DivisionSearch inner(q, *bound, bytes.get(), out);
  Divisions divisions(q, out, inner);
  for (const int64_t gpus : q.gpus) {
    inner.begin_cluster(gpus);
    for (const int64_t global : q.globals) {
      const double flops = step_flops(step_case(q, {.gpus = gpus, .global = global}), false);
      if (!(flops < kMostStepSeconds * double(gpus) * q.figures.bf16)) too_slow(q);
      divisions.of(gpus, global);
    }
  }
  inner.finish();
  out.best = inner.best();
  if (out.best.empty() && inner.too_slow()) too_slow(q);
  const auto by_score = [](const Priced& a, const Priced& b) { return a.score < b.score; };
  std::stable_sort(out.divisions.begin(), out.divisions.end(), by_score);
  std::stable_sort(out.front.begin(), out.front.end(),
                   [&](const Priced& a, const Priced& b) { return seconds_of(q, a) < seconds_of(q, b); });
  const auto place = [](const SearchResult::Rejected& no) {
    const SearchLayout& l = no.layout;
    return std::tie(l.gpus, l.global, l.tp, l.pp, l.cp, l.ep);
  };
  std::stable_sort(out.rejected.begin(), out.rejected.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  out.seconds = now_s() - begin;
  return out;
}

}  // namespace trireme
