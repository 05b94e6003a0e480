// The answer of a search on one screen.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "catalog/price_list.h"
#include "forecast/scaled_run.h"
#include "forecast/search_layout.h"
#include "forecast/searched_step.h"
#include "search/confirm.h"
#include "search/one_kind.h"
#include "search/search.h"
#include "search/search_costs.h"

namespace trireme {
namespace {

constexpr double kBillion = 1e9;
constexpr std::string_view kChanges = "another division is the best if\n";
constexpr double kSecondsOfHour = 3600;

// A layout's times and bytes: replayed and booked if they are known, else of the closed form.
struct Shown {
  const Priced* priced = nullptr;
  const Confirmed* found = nullptr;
  double step_s() const { return found && found->step_s > 0 ? found->step_s : priced->time.total; }
  double times() const { return step_s() / priced->time.total; }
  double bytes() const { return found && found->booked ? found->bytes : priced->memory.total; }
};

std::string numbers_text(const SearchRequest& q) {
  return q.numbers == NumberType::fp8 && q.run ? fp8_text(q.run->precision) : "";
}

// Three digits, or as many as tell it from 1.
std::string factor_text(double factor) {
  const std::string text = three_digits(factor);
  return text == "1.00" ? fmt::format("{:.4f}", factor) : text;
}

// Says that the closed form's step is shown, and why no replay is.
std::string closed_form_text(const Confirmed* found) {
  if (!found || found->unsimulated.empty()) return " (closed form, not replayed)";
  const std::string& why = found->unsimulated;
  return fmt::format(" (closed form; replays do not have {})", why.substr(0, why.find_first_of(":\n")));
}

std::string step_line(const SearchRequest& q, const Shown& b) {
  const StepInterval i = interval_of(q, *b.priced, b.found ? b.found->step_s : 0);
  const double bound = bound_s(q, b.priced->layout, b.step_s());
  return answer_line(
      "step", fmt::format("{} expected, {} to {} in 80 of 100 runs [bound {}]{}", seconds_text(b.step_s()),
                          seconds_text(i.low), seconds_text(i.high), seconds_text(bound),
                          b.found && b.found->step_s > 0 ? "" : closed_form_text(b.found)));
}

std::string speed_line(const SearchRequest& q, const Shown& b) {
  const double tokens = step_tokens(q, b.priced->layout), gpus = double(b.priced->layout.gpus);
  const double hours = b.step_s() * gpus / tokens / kSecondsOfHour * kBillion;
  std::string s = fmt::format("{} tokens/s, {} per GPU, MFU {:.1f} %{}; {} GPU-hours per billion tokens",
                              three_digits(tokens / b.step_s()), three_digits(tokens / b.step_s() / gpus),
                              100 * mfu_of(q, *b.priced) / b.times(),
                              q.run ? mfu_peak_text(q.run->precision) : "", three_digits(hours));
  if (const double price = price_of(q, b.priced->layout.gpus); price > 0)
    s += fmt::format(", at {:.6g} each {}", price, money_text(three_digits(hours * price), q.currency));
  if (q.by == RankBy::loss)
    s += fmt::format("; {} days to a loss of {:.3f}, failures included",
                     three_digits(b.priced->score * b.times() / 86400), q.loss);
  return answer_line("speed", s);
}

std::string memory_line(const SearchRequest& q, const Shown& b) {
  const double capacity =
      q.figures.memory + (b.found && b.found->booked ? b.found->more : b.priced->memory.more);
  std::string s =
      fmt::format("{} of {} on the most loaded GPU", bytes_text(b.bytes()), capacity_text(capacity));
  if (q.memory_share < 1) s += fmt::format(", {:.0f} % of it allowed", 100 * q.memory_share);
  if (!b.found || !b.found->booked)
    s += "; closed form";
  else if (q.software.ordered())
    s += "; its real step on meta";
  else
    s += fmt::format("; booked by trireme's rules, {} of it drivers and libraries ({} in plan)",
                     bytes_text(b.priced->memory.base), bytes_text(constants_of({})[size_t(Fit::base)]));
  return answer_line("memory", s);
}

// The largest parts of the step next to products.
std::string binds_line(const Shown& b) {
  constexpr size_t kShown = 3;
  std::string s;
  size_t n = 0;
  for (const auto& [name, seconds] : tolls_of(b.priced->time)) {
    const double share = seconds / b.priced->time.total;
    if (n == kShown || share < 0.005) break;
    if (name == "products") continue;
    s += fmt::format("{}{} {:.0f} %", n > 0 ? ", " : "", name, 100 * share);
    n++;
  }
  const auto products = b.priced->time.products / b.priced->time.total;
  return answer_line("binds", fmt::format("products take {:.0f} % of the step; next {}", 100 * products, s));
}

// The closed form's best may be of another division than the replayed best: a change that leads to
// the latter's division is left out.
std::string change_lines(const SearchWhy& w, const SearchLayout& best) {
  constexpr size_t kShown = 3;
  std::string s;
  size_t n = 0;
  for (const Flip& f : w.flips) {
    if (n == kShown) break;
    if (f.rival.layout.same_division(best)) continue;
    s += fmt::format("  {} x {}: {}\n", f.what, factor_text(f.factor), text_of(f.rival.layout));
    n++;
  }
  return n > 0 ? s : "  no figure changed by up to 64 times makes another division the best\n";
}

// The number of devices, if the search compares several.
std::string gpus_text(const SearchRequest& q, const SearchLayout& l) {
  return q.gpus.size() > 1 ? fmt::format(" on {} GPUs", l.gpus) : "";
}

std::string alternative(const SearchRequest& q, const Shown& a, const Shown& best, std::string_view what) {
  const std::string_view ranked = q.by == RankBy::cost   ? " cost"
                                  : q.by == RankBy::loss ? " time to the loss"
                                                         : "";
  return fmt::format("  {} ({:+.1f} %{}), {}: {}{} ({})\n", seconds_text(a.step_s()),
                     100 * (a.priced->score * a.times() / (best.priced->score * best.times()) - 1), ranked,
                     bytes_text(a.bytes()), text_of(a.priced->layout), gpus_text(q, a.priced->layout), what);
}

// "another division", or whether its number of devices or its batch differs.
std::string difference(const SearchLayout& a, const SearchLayout& best) {
  if (a.gpus != best.gpus) return "another number of GPUs";
  if (a.global != best.global) return fmt::format("{} sequences", a.global);
  return a.same_division(best) ? "same division" : "another division";
}

// The fastest of another division, and the fastest that takes a tenth less memory; if one of them is missing,
// the next best.
std::string alternative_lines(const SearchRequest& q, const SearchResult& r, const Confirmation* all,
                              const Shown& best) {
  const auto shown = [&](const Priced& p) { return Shown{&p, all ? all->of(p.layout) : nullptr}; };
  const auto usable = [&](const Priced& p) {
    const Confirmed* c = all ? all->of(p.layout) : nullptr;
    return !all || (c && c->holds()) || (!q.software.ordered() && !c);
  };
  const SearchLayout& own = best.priced->layout;
  std::string s;
  std::vector<SearchLayout> chosen = {own};
  // The first of the list; if its order is not that of bounds, the fastest that was replayed.
  const auto add = [&](const std::vector<Priced>& from, std::string_view what, auto&& offered) {
    if (chosen.size() > kAlternatives) return;
    const Priced* one = nullptr;
    for (const Priced& p : from) {
      if (std::find(chosen.begin(), chosen.end(), p.layout) != chosen.end()) continue;
      if (!usable(p) || !offered(p)) continue;
      const Confirmed* c = shown(p).found;
      if (!one || (c && (!shown(*one).found || c->score() < shown(*one).found->score()))) one = &p;
      if (!all || q.software.ordered()) break;
    }
    if (!one) return;
    s += alternative(q, shown(*one), best, what.empty() ? difference(one->layout, own) : what);
    chosen.push_back(one->layout);
  };
  const auto other = [&](const Priced& p) { return !p.layout.same_division(own); };
  add(r.divisions, "", other);
  add(r.front, "less memory", [&](const Priced& p) { return shown(p).bytes() < kLessMemory * best.bytes(); });
  add(r.divisions, "", other);
  add(r.best, "", [](const Priced&) { return true; });
  return s.empty() ? "  none fits\n" : s;
}

// The step that `plan` prints of the layout's run file; its bound alone if it cannot be replayed.
std::string own_step_text(const SearchRequest& q, const SearchLayout& l, double least) {
  if (q.run) try {
      const RunSpec own = resolve(with_layout(*q.run, l, q.disk_each_way), {.native_bf16 = true});
      if (const auto step = searched_step(own, cluster_called(own.cluster.file, l.gpus)))
        return fmt::format("{} expected [bound {}]", seconds_text(step->step_s), seconds_text(step->roof_s));
    } catch (const Error& e) {
      if (e.fault != Fault::request) throw;  // it does not run the layout
    }
  return "takes at least " + seconds_text(least);
}

// Whose constants price the step, and why this program's own forecast of the layout differs: the two parts
// that differ most.
std::string prices_line(const SearchRequest& q, const SearchLayout& l) {
  if (q.constants.empty()) return "";
  if (q.software.ordered()) return answer_line("prices", q.constants);
  LayoutCase own = q;
  own.software = kTrireme;
  own.attention = AttentionKind::flash;
  own.fits = ordered_constants(constants_of({.device = q.device, .software = "", .site = ""}));
  const StepSeconds mine = price_layout(own, l).time;
  std::map<std::string_view, std::pair<double, double>> both;
  const auto theirs = tolls_of(price_layout(q, l).time), ours = tolls_of(mine);
  for (const auto& [name, seconds] : theirs) both[name].first = seconds;
  for (const auto& [name, seconds] : ours) both[name].second = seconds;
  std::vector<std::pair<double, std::string>> parts;
  for (const auto& [name, s] : both)
    parts.emplace_back(-std::abs(s.first - s.second),
                       fmt::format("{} {} against {}", name, seconds_text(s.second), seconds_text(s.first)));
  std::sort(parts.begin(), parts.end());
  return answer_line(
      "prices", fmt::format("{}; trireme's own step, by the constants of all software and its "
                            "own overlap, {}: {}, {}",
                            q.constants, own_step_text(q, l, mine.total), parts[0].second, parts[1].second));
}

// The effect of another batch, if the devices' number does not divide with the given one.
std::string batch_line(const SearchRequest& q, const SearchResult& r) {
  if (q.asked_global == 0) return "";
  const Priced* asked = nullptr;
  const Priced* other = nullptr;
  for (const Priced& p : r.divisions) {
    const Priced*& to = p.layout.global == q.asked_global ? asked : other;
    if (!to) to = &p;
  }
  std::string s = fmt::format("{} GPUs and {} sequences: replicas that are a multiple of {} do not divide it",
                              q.gpus[0], q.asked_global, q.gpus[0] / std::gcd(q.gpus[0], q.asked_global));
  if (!other) return answer_line("batch", s);
  s += fmt::format("; {} do", other->layout.global);
  if (asked)
    s += fmt::format(", {:+.1f} % time per token against the best of {}",
                     100 * (other->token_s / asked->token_s - 1), q.asked_global);
  return answer_line("batch", s + " (--require global=N fixes it)");
}

// "16", "1,970": counts below a thousand exactly.
std::string few_text(int64_t n) {
  return n < 1000 ? std::to_string(n) : three_digits(double(n));
}

std::string searched_line(const SearchRequest& q, const SearchResult& r, const Confirmation* all) {
  std::string s = fmt::format("{} of {} layouts fit", few_text(r.fits), few_text(r.candidates));
  if (r.unweighed > 0) s += fmt::format(", {} are too slow to weigh", few_text(r.unweighed));
  int64_t replayed = 0;
  std::string proof;
  if (all && q.software.ordered())
    proof = all->proven ? q.kinds ? ", no other of the tried cuts of layers can be faster"
                                  : ", no other can be faster"
            : all->next_score > 0 && !all->looked_at.empty()
                ? fmt::format(", time ran out: others may take {:.1f} % less",
                              100 * (1 - all->next_score / all->least_score()))
                : "";
  if (all)
    for (const std::vector<Confirmed>* list : {&all->looked_at, &all->front})
      for (const Confirmed& c : *list) replayed += c.step_s > 0;
  s += fmt::format(", {} replayed{}; Pareto front of time, cost and memory: {} (--all)", replayed, proof,
                   r.front.size());
  std::string required;
  std::string_view source;
  for (const Requirement& c : q.require) {
    const bool own = c.source == "--require";
    if (own || c.source != source)
      required += fmt::format("{}{}", required.empty() ? "; required: " : ", ", own ? c.text : c.source);
    source = c.source;
  }
  s += required;
  return answer_line("searched", s);
}

}  // namespace

namespace {

// The lines of a found layout's answer below its first one.
std::string found_text(const SearchRequest& q, const SearchResult& r, const SearchWhy* w,
                       const Confirmation* all, bool written) {
  std::string s;
  const Shown best{&r.best.front(), all ? all->of(r.best.front().layout) : nullptr};
  const Goodput g = goodput_of(q, best.priced->layout.gpus);
  s += answer_line("layout", text_of(*best.priced) + numbers_text(q) + gpus_text(q, best.priced->layout));
  s += step_line(q, best) + speed_line(q, best) + memory_line(q, best) + binds_line(best);
  if (best.found && !best.found->refused.empty())
    s += answer_line("not run", "this version does not run it: " +
                                    best.found->refused.substr(0, best.found->refused.find('\n')));
  s += batch_line(q, r);
  if (!r.alone.empty()) s += answer_line("alone", alone_text(r.alone, best.step_s()));
  if (w) s += std::string(kChanges) + change_lines(*w, best.priced->layout);
  s += "alternatives\n" + alternative_lines(q, r, all, best);
  for (const auto& [name, text] : cost_lines(q, costs_of(q, best.priced->layout, best.step_s())))
    s += answer_line(name, text);
  const double paid = best.priced->token_s * best.times() * double(g.paid) / kSecondsOfHour * kBillion;
  s += answer_line("failures",
                   fmt::format("one every {} h; goodput {:.1f} %; {} spare machine{}; with them {} GPU-hours "
                               "per billion tokens",
                               three_digits(g.mtbf_s / kSecondsOfHour), 100 * g.share, g.spares,
                               g.spares == 1 ? "" : "s", three_digits(paid)));
  s += searched_line(q, r, all);
  if (!q.note.empty()) s += answer_line("note", q.note);
  s += prices_line(q, best.priced->layout);
  return written ? s : s + answer_line("run file", "--out FILE writes it, --all prints it");
}

// Takes out lines, those that matter least to the choice first, until `most` are left.
std::string fitted(std::string s, size_t most) {
  static constexpr std::array<std::string_view, 5> kLeast = {"serving", "kinds", "energy", "price",
                                                             "checkpoint"};
  const auto fits = [&] { return size_t(std::count(s.begin(), s.end(), '\n')) <= most; };
  for (const std::string_view name : kLeast) {
    if (fits()) break;
    const size_t at = s.find(fmt::format("\n  {:<11} ", name));
    if (at != s.npos) s.erase(at + 1, s.find('\n', at + 1) - at);
  }
  if (!fits()) {  // --all --why lists these changes
    const size_t at = s.find(kChanges);
    if (at != s.npos) s.erase(at, s.find("alternatives\n", at) - at);
  }
  return s;
}

}  // namespace

std::string answer_text(const SearchRequest& q, const SearchResult& r, const SearchWhy* w,
                        const Confirmation* all, size_t below, bool written) {
  constexpr size_t kScreen = 24;
  std::string s = fmt::format("{} on {}{}, {} sequences of {} tokens per step: ", q.name,
                              q.gpus.size() > 1 ? "up to " : "", devices_text(q),
                              r.best.empty() ? q.globals.back() : r.best.front().layout.global, q.seq);
  if (r.best.empty()) {
    s += "nothing fits\n" + refused_text(q, r);
    if (q.software.ordered() && q.disk == 0)
      s += "a cluster file with host_bandwidth or disk_bandwidth (--cluster configs/cluster/h100-sxm-8.toml) "
           "adds layouts whose optimizer state waits there\n";
    return s;
  }
  s += fmt::format("the best by {}\n", q.by == RankBy::step   ? "step time"
                                       : q.by == RankBy::cost ? "cost per token"
                                                              : "time to a loss");
  return fitted(s + found_text(q, r, w, all, written), kScreen - std::min(kScreen, below));
}

}  // namespace trireme
