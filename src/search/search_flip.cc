#include "search/search_flip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "cost/stated_links.h"

namespace trireme {
namespace {

struct Turned {
  std::string_view name, what, unit;
  double scale;                   // of the unit
  double DeviceFigures::*figure;  // null: the batch
};
constexpr Turned kTurned[] = {
    {"near", "links inside a node", "GB/s", 1e9, &DeviceFigures::bus},
    {"far", "links between nodes", "GB/s a device", 1e9, &DeviceFigures::nic},
    {"memory", "a device's memory", "GB", 1e9, &DeviceFigures::memory},
    {"peak", "a device's peak", "TFLOP/s", 1e12, &DeviceFigures::bf16},
    {"batch", "the batch", "sequences", 1, nullptr},
};

const Turned& knob_named(std::string_view name) {
  for (const Turned& t : kTurned)
    if (t.name == name) return t;
  bad_request("--flip: no \"{}\"; right are near, far, memory, peak and batch", name);
}

double value_of(const SearchRequest& q, const Turned& t) {
  return t.figure ? q.figures.*t.figure : double(q.globals[0]);
}

// The best where the knob is at `value`; nothing: nothing fits there.
std::optional<Priced> best_at(SearchRequest q, const Turned& t, double value) {
  // The slowest kind's value; other kinds' change in proportion.
  const double now = value_of(q, t);
  if (!t.figure) q.globals = {std::llround(value)};
  q.change([&](DeviceFigures& figures, FitValues&) {
    if (!t.figure) return;
    const double of = figures.*t.figure;
    const double to = of == now ? value : of * (value / now);
    // Attention has a separate rate, which grows with the device's.
    if (t.figure == &DeviceFigures::bf16)
      for (double* rate : {&figures.attention, &figures.attention2}) *rate *= to / of;
    if (t.figure == &DeviceFigures::bus)
      set_near(figures, to);
    else if (t.figure == &DeviceFigures::nic)
      set_far(figures, to);
    else
      figures.*t.figure = to;
  });
  q.best = 1;
  SearchResult r = search(q);
  if (r.best.empty()) return std::nullopt;
  return r.best[0];
}

bool same_degrees(const SearchLayout& a, const SearchLayout& b) {
  return a.tp == b.tp && a.pp == b.pp && a.cp == b.cp && a.dp == b.dp && a.ep == b.ep;
}

struct Looked {
  std::optional<Priced> best;
  bool changed = false;
};

class FlipSearch {
 public:
  FlipSearch(const SearchRequest& q, const Priced& best, const Turned& t) : q_(q), best_(best), t_(t) {}

  // direction: 2 or 1/2, a doubling of the knob or half of it.
  FlipPoint towards(double direction) const {
    FlipPoint p{.knob = t_.name, .now = value_of(q_, t_), .before = best_};
    const double step = t_.figure ? std::sqrt(direction) : direction;
    double same = p.now;
    p.at = same;
    for (double f = step; std::abs(std::log2(f)) < std::log2(kMostTurned) + 1e-9; f *= step) {
      const double value = p.now * f;
      if (!t_.figure && value != std::floor(value)) break;  // half a sequence
      const Looked l = look(value);
      p.at = value;
      if (!l.changed) {
        same = value;
        continue;
      }
      p.any = true;
      set(p, l);
      if (t_.figure) narrow(p, same);
      return p;
    }
    return p;
  }

 private:
  Looked look(double value) const {
    Looked l{best_at(q_, t_, value)};
    l.changed = !l.best || !same_degrees(l.best->layout, best_.layout);
    return l;
  }
  static void set(FlipPoint& p, const Looked& l) {
    p.fits = l.best.has_value();
    if (l.best) p.after = *l.best;
  }
  // p.at has another best, `same` has not.
  void narrow(FlipPoint& p, double same) const {
    while (std::abs(p.at / same - 1) > kFlipWithin) {
      const double middle = std::sqrt(p.at * same);
      const Looked l = look(middle);
      if (!l.changed) {
        same = middle;
        continue;
      }
      p.at = middle;
      set(p, l);
    }
  }

  const SearchRequest& q_;
  const Priced& best_;
  const Turned& t_;
};

std::string change_text(const SearchLayout& a, const SearchLayout& b) {
  std::string s;
  const auto degree = [&](const char* name, int64_t from, int64_t to) {
    if (from != to) s += fmt::format("{}{} {} -> {}", s.empty() ? "" : ", ", name, from, to);
  };
  degree("tp", a.tp, b.tp), degree("pp", a.pp, b.pp), degree("cp", a.cp, b.cp);
  degree("dp", a.dp, b.dp), degree("ep", a.ep, b.ep);
  return s;
}

// "links rise", "memory rises".
std::string verb(const Turned& t, const FlipPoint& p, const char* up, const char* down) {
  return std::string(p.rises() ? up : down) + (t.what.starts_with("links") ? "" : "s");
}

std::string point_text(const FlipPoint& p) {
  const Turned& t = knob_named(p.knob);
  const auto plain = [&](double v) {
    const double shown = v / t.scale;
    return shown >= 1000 ? fmt::format("{:.0f}", shown) : fmt::format("{:.3g}", shown);
  };
  const auto said = [&](double v) { return fmt::format("{} {}", plain(v), t.unit); };
  if (!p.any)
    return p.at == p.now
               ? ""
               : fmt::format("  nothing when {} {} to {}\n", t.what, verb(t, p, "rise", "fall"), said(p.at));
  const std::string when =
      t.figure ? fmt::format("when {} {} {}", t.what,
                             verb(t, p, "rise", "fall") + (p.rises() ? " above" : " below"), said(p.at))
               : fmt::format("when {} is {}", t.what, said(p.at));
  if (!p.fits) return fmt::format("  nothing fits {} (now {})\n", when, plain(p.now));
  return fmt::format("  {} {} (now {}): at least {:.3f} s, {}\n",
                     change_text(p.before.layout, p.after.layout), when, plain(p.now), p.after.time.total,
                     text_of(p.after.layout));
}

}  // namespace

std::vector<std::string> flip_knobs() {
  std::vector<std::string> names;
  for (const Turned& t : kTurned) names.emplace_back(t.name);
  return names;
}

std::vector<FlipPoint> flip_points(const SearchRequest& q, const Priced& best,
                                   const std::vector<std::string>& knobs) {
  std::vector<FlipPoint> all;
  for (const std::string& name : knobs) {
    const Turned& t = knob_named(name);
    if (value_of(q, t) <= 0) continue;  // one node has no links to others
    for (const double direction : {0.5, 2.0}) all.push_back(FlipSearch(q, best, t).towards(direction));
  }
  return all;
}

std::string flips_text(const std::vector<FlipPoint>& all) {
  if (all.empty()) return "";
  std::string s = fmt::format(
      "\nwhat would flip {} in closed form, all layouts searched again (to within {:.0f} %, up to {:.0f} "
      "times)\n",
      division_text(all[0].before.layout), 100 * kFlipWithin, kMostTurned);
  for (const FlipPoint& p : all) s += point_text(p);
  return s;
}

std::string flips_json(const std::vector<FlipPoint>& all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const FlipPoint& p : all) {
    nlohmann::ordered_json j = {
        {"knob", p.knob}, {"now", p.now}, {"at", p.at}, {"flips", p.any}, {"fits", p.fits}};
    if (p.any && p.fits) j["layout"] = text_of(p.after.layout), j["step_s"] = p.after.time.total;
    list.push_back(j);
  }
  return list.dump();
}

}  // namespace trireme
