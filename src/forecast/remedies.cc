#include "forecast/remedies.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/progress.h"
#include "forecast/own_schedule.h"
#include "forecast/quick_forecast.h"
#include "spec/batch_ramp.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

struct Change {
  std::string text;
  RunSpec run;
};
using Family = std::vector<Change>;  // of one kind, the cheapest first as a rule

void recompute_more(const RunSpec& run, Family& out) {
  const std::string& now = run.layout.recompute;
  for (const std::string_view more : {"selective", "full"}) {
    if (now == "full" || now == more) continue;
    Change c{fmt::format("layout.recompute = \"{}\"", more), run};
    c.run.layout.recompute = more;
    out.push_back(std::move(c));
  }
}

void shard_more(const RunSpec& run, Family& out) {
  if (replicas_of(run.layout) == 1) return;
  for (int64_t zero = effective_zero(run.layout) + 1; zero <= 3; zero++) {
    Change c{fmt::format("layout.zero = {}", zero), run};
    c.run.layout.zero = zero;
    out.push_back(std::move(c));
  }
}

// The largest that divides the batch of every stage and is at most half of the one before it.
void smaller_microbatches(const RunSpec& run, Family& out) {
  const int64_t replica = divisor_of_batches(run.batch) / run.layout.dp;
  int64_t before = run.batch.micro;
  for (int64_t micro = before / 2; micro >= 1; micro--) {
    if (replica % micro != 0 || micro > before / 2) continue;
    Change c{fmt::format("batch.micro = {}", micro), run};
    c.run.batch.micro = before = micro;
    out.push_back(std::move(c));
  }
}

void offload_more(const RunSpec& run, Family& out) {
  for (const std::string_view more : {"inputs", "state", "all"}) {
    if (run.layout.offload == more || run.layout.offload == "all") continue;
    if (run.layout.offload != "none" && more != "all") continue;
    Change c{fmt::format("layout.offload = \"{}\"", more), run};
    c.run.layout.offload = more;
    if (run.layout.offload == "none" &&
        run.train.device != "cpu") {  // whose own memory is full, not the host's
      c.run.layout.offload_to = "host";
      c.text += " with layout.offload_to = \"host\"";
    }
    out.push_back(std::move(c));
  }
}

void divide_more(const RunSpec& run, int64_t LayoutSpec::*axis, const char* name, Family& out) {
  const LayoutSpec& l = run.layout;
  if (l.dp % 2 != 0) return;
  Change c{fmt::format("layout.{} = {} with layout.dp = {}", name, 2 * (l.*axis), l.dp / 2), run};
  c.run.layout.*axis *= 2, c.run.layout.dp /= 2;
  out.push_back(std::move(c));
}

std::vector<Family> families_of(const RunSpec& run) {
  std::vector<Family> all(6);
  recompute_more(run, all[0]);
  shard_more(run, all[1]);
  smaller_microbatches(run, all[2]);
  offload_more(run, all[3]);
  divide_more(run, &LayoutSpec::tp, "tp", all[4]);
  divide_more(run, &LayoutSpec::pp, "pp", all[5]);
  return all;
}

void divide_less(const RunSpec& run, int64_t LayoutSpec::*axis, const char* name, Family& out) {
  const LayoutSpec& l = run.layout;
  if (l.*axis % 2 != 0) return;
  Change c{fmt::format("layout.{} = {} with layout.dp = {}", name, l.*axis / 2, 2 * l.dp), run};
  c.run.layout.*axis /= 2;
  c.run.layout.dp *= 2;
  out.push_back(std::move(c));
}

// Single changes of a run in either direction.
Family neighbours_of(const RunSpec& run) {
  Family all;
  const auto add = [&](std::string text, auto&& change) {
    Change c{std::move(text), run};
    change(c.run);
    all.push_back(std::move(c));
  };
  for (const std::string_view again : {"none", "selective", "full"})
    if (run.layout.recompute != again)
      add(fmt::format("layout.recompute = \"{}\"", again), [&](RunSpec& r) { r.layout.recompute = again; });
  for (int64_t zero = 0; zero <= 3 && replicas_of(run.layout) > 1; zero++)
    if (zero != effective_zero(run.layout))
      add(fmt::format("layout.zero = {}", zero), [&](RunSpec& r) { r.layout.zero = zero; });
  const int64_t replica = divisor_of_batches(run.batch) / run.layout.dp;
  for (const int64_t micro : {run.batch.micro / 2, run.batch.micro * 2})
    if (micro > 0 && replica % micro == 0)
      add(fmt::format("batch.micro = {}", micro), [&](RunSpec& r) { r.batch.micro = micro; });
  divide_more(run, &LayoutSpec::tp, "tp", all);
  divide_less(run, &LayoutSpec::tp, "tp", all);
  divide_more(run, &LayoutSpec::pp, "pp", all);
  divide_less(run, &LayoutSpec::pp, "pp", all);
  return all;
}

// Tries changes of one run.
class Trial {
 public:
  Trial(const Forecast& before, const RunSpec& run, const ClusterSpec& cluster, int threads, int64_t replayed)
      : before_(before), run_(run), cluster_(cluster), threads_(threads), replayed_(replayed) {}
  // As train would prepare it. Nothing: it cannot be.
  std::optional<Remedy> of(const Change& c, bool& fits) {
    try {
      RunSpec run = c.run;
      if (!problems_of(run).empty() || !unsupported_of(run).empty()) return std::nullopt;
      run = resolve(run, {.native_bf16 = run.precision.compute == "bf16"});
      run.own_schedule = {};
      find_own_schedule(run, cluster_);
      Remedy r{.change = c.text};
      fits = is_long(run) ? look(run, r) : replay(run, r);
      if (before_.step_s > 0) r.costs = r.step_s / before_.step_s - 1;
      return r;
    } catch (const Error& e) {
      if (e.fault != Fault::request) throw;
      return std::nullopt;
    }
  }
  int64_t booked() const { return booked_; }

 private:
  // Would the longer of the two, as it was and changed, take too long to replay?
  bool is_long(const RunSpec& run) const {
    const int64_t pieces = int64_t(before_.booking.tape.pieces.size()) * run_.layout.pp;
    const double grown = double(run.microbatches()) / double(run_.microbatches());
    return double(pieces) * std::max(1.0, grown) > double(replayed_);
  }
  bool replay(const RunSpec& run, Remedy& r) const {
    const Forecast after = forecast(run, schedule_of(run), cluster_, threads_, before_.by);
    r.saves = before_.device_bytes() - after.device_bytes(), r.step_s = after.step_s;
    // Where one is expected and the other at the roof, what the change does at the roof says it.
    if (after.expected != before_.expected && before_.roof_s > 0)
      r.step_s = before_.step_s * after.roof_s / before_.roof_s, r.about = true;
    r.priced = after.step_s > 0 && after.offload_priced() && after.wire_priced;
    return after.fits;
  }
  // Both of the pair by quick forecasts: only their ratio counts.
  bool look(const RunSpec& run, Remedy& r) {
    if (booked_ == 0) {
      quick_ = quick_forecast(run_, cluster_, threads_, before_.expected);
      booked_ = quick_.booked;
    }
    const QuickForecast after = quick_forecast(run, cluster_, threads_, before_.expected);
    booked_ += after.booked;
    r.saves = quick_.bytes - after.bytes;
    r.step_s = after.step_s(quick_, before_.step_s), r.about = r.step_s > 0;
    r.priced = r.step_s > 0 && after.offload_priced && after.wire_priced;
    return after.bytes <= cluster_.memory_bytes / ranks_on_device(run, cluster_);
  }

  const Forecast& before_;
  const RunSpec& run_;  // as it was
  const ClusterSpec& cluster_;
  int threads_;
  int64_t replayed_;     // pieces of all stages, at most
  QuickForecast quick_;  // of the run as it was, once one is asked for
  int64_t booked_ = 0;
};

bool cheaper(const Remedy& a, const Remedy& b) {
  if (a.priced != b.priced) return a.priced;
  return a.step_s != b.step_s ? a.step_s < b.step_s : a.saves > b.saves;
}

}  // namespace

std::string to_text(const Remedy& r) {
  const std::string saves = fmt::format("{} {} {} a rank", r.change, r.saves < 0 ? "takes another" : "saves",
                                        human_bytes(std::abs(r.saves)));
  if (r.step_s == 0) return saves + ", in a time that is not known";
  const char* unpriced = r.priced ? "" : ", and what it moves takes time that is not known";
  if (std::abs(r.costs) < 5e-4) return fmt::format("{} at the same step time{}", saves, unpriced);
  return fmt::format("{} and {} {}{:.1f} % of the step's time{}", saves, r.costs < 0 ? "spares" : "costs",
                     r.about ? "about " : "", 100 * std::abs(r.costs), unpriced);
}

void find_replayed_alternatives(Forecast& f, const RunSpec& run, const PrecisionSpec& asked,
                                const ClusterSpec& cluster, int threads, int64_t replayed) {
  constexpr size_t kAlternatives = 2;
  if (!f.fits || f.closed_form || f.step_s <= 0 || run.lora.active()) return;
  RunSpec from = run;
  from.precision = asked;
  from.precision.compute = run.precision.compute;
  Trial trial(f, run, cluster, threads, replayed);
  for (const Change& c : neighbours_of(from)) {
    bool fits = false;
    const std::optional<Remedy> r = trial.of(c, fits);
    if (!r || !fits || r->step_s <= 0 || !r->priced) continue;
    f.alternatives.push_back({c.text, r->step_s, double(f.device_bytes() - r->saves)});
  }
  std::stable_sort(f.alternatives.begin(), f.alternatives.end(),
                   [](const Alternative& a, const Alternative& b) { return a.step_s < b.step_s; });
  if (f.alternatives.size() > kAlternatives) f.alternatives.resize(kAlternatives);
}

void find_remedies(Forecast& f, const RunSpec& run, const PrecisionSpec& asked, const ClusterSpec& cluster,
                   int threads, int64_t replayed) {
  if (f.fits) return;
  RunSpec from = run;
  from.precision = asked, from.precision.compute = run.precision.compute;
  Remedies all;
  Trial trial(f, run, cluster, threads, replayed);
  for (const Family& family : families_of(from))
    for (const Change& c : family) {
      bool fits = false;
      std::optional<Remedy> r = trial.of(c, fits);
      if (!r) continue;
      all.tried++;
      if (!fits) {
        if (!all.leanest || r->saves > all.leanest->saves) all.leanest = std::move(r);
        continue;
      }
      all.found.push_back(*std::move(r));
      break;
    }
  all.booked = trial.booked();
  if (!all.found.empty()) all.leanest.reset();
  std::stable_sort(all.found.begin(), all.found.end(), cheaper);
  f.remedies = std::move(all);
}

}  // namespace trireme
