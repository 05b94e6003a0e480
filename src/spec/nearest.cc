#include "spec/nearest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "base/divisors.h"
#include "base/error.h"
#include "spec/batch_ramp.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"
#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme {
namespace {

constexpr int64_t kMostRanks = 1 << 14;
constexpr size_t kMostSizes = 20'000;
constexpr int kMostTries = 5'000;  // tens of milliseconds, and a schedule for each that passes the checks
constexpr size_t kMostReset = 2;
constexpr int64_t kMostBytes = 64 << 20;  // of a schedule's file
constexpr auto kSizes = std::array{&LayoutSpec::pp, &LayoutSpec::dp, &LayoutSpec::cp, &LayoutSpec::tp};

// What of it does not work, and whether its schedule is one that can run. The own schedule of a file has been
// read (own; of other sizes than the run's it does not fit); one that is searched for fits what it is for.
class Judge {
 public:
  explicit Judge(const RunSpec& run) {
    if (run.layout.schedule != "file") return;
    try {
      own_ = parse_schedule(read_small(run.layout.schedule_file, kMostBytes));
    } catch (const Error&) {  // then no layout with this key works
    }
  }
  std::vector<Problem> problems(const RunSpec& run) const {
    std::vector<Problem> wrong = problems_of(run);
    for (Problem& p : unsupported_of(run)) wrong.push_back(std::move(p));
    if (!wrong.empty() || run.layout.schedule == "auto") return wrong;
    if (const std::string fault = run.layout.schedule == "file" ? own_fault(run) : fault_of(run);
        !fault.empty())
      wrong.push_back({{"layout.schedule"}, fault});
    return wrong;
  }
  bool works(const RunSpec& run) const { return problems_of(run).empty() && problems(run).empty(); }

 private:
  static std::string fault_in(const RunSpec& run) {
    try {
      validate(schedule_of(run));
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  std::string own_fault(const RunSpec& run) const {
    try {
      require(own_.has_value(), "no file");
      RunSpec copy = run;
      set_own_schedule(copy, *own_, "layout.schedule_file");
      return fault_in(copy);
    } catch (const Error& e) {
      return e.what();
    }
  }
  // Of many stages and microbatches a schedule is millions of actions: looked at once.
  const std::string& fault_of(const RunSpec& run) const {
    const LayoutSpec& l = run.layout;
    const bool alone = replicas_of(l) == 1;
    const Key key{l.schedule,
                  l.pp,
                  l.chunks,
                  run.microbatches(),
                  l.recompute != "none",
                  alone,
                  alone ? 0 : effective_zero(l),
                  !alone && l.reshard_after_forward,
                  !alone && l.ep > 1};
    const auto known = faults_.find(key);
    return known != faults_.end() ? known->second : faults_[key] = fault_in(run);
  }

  // All that schedule_of() reads.
  using Key = std::tuple<std::string, int64_t, int64_t, int64_t, bool, bool, int, bool, bool>;
  mutable std::map<Key, std::string> faults_;
  std::optional<Schedule> own_;
};

// A key more is worse than any other size.
double cost_of(int64_t before, int64_t after) {
  return before == after ? 0 : 1 + std::fabs(std::log2(double(after) / double(before))) / 1000;
}

struct Sizes {
  std::array<int64_t, kSizes.size()> of{};
  int64_t ep = 1;
  double cost = 0;
};

// pp, dp, cp and tp of the same product, and ep of what is a divisor then; nearest first.
std::vector<Sizes> sizes_of(const LayoutSpec& l) {
  std::vector<Sizes> out;
  const int64_t world = l.pp * l.dp * l.cp * l.tp;
  for (int64_t pp : divisors_of(world))
    for (int64_t dp : divisors_of(world / pp))
      for (int64_t cp : divisors_of(world / pp / dp)) {
        if (out.size() > kMostSizes) break;
        Sizes s{.of = {pp, dp, cp, world / pp / dp / cp}};
        for (size_t i = 0; i < kSizes.size(); i++) s.cost += cost_of(l.*kSizes[i], s.of[i]);
        for (int64_t ep : l.ep == 1 ? std::vector<int64_t>{1} : divisors_of(world / pp))
          out.push_back({s.of, ep, s.cost + cost_of(l.ep, ep)});
      }
  std::stable_sort(out.begin(), out.end(), [](const Sizes& a, const Sizes& b) { return a.cost < b.cost; });
  return out;
}

using Fields = std::vector<std::pair<std::string, FieldRef>>;
Fields layout_fields(RunSpec& run) {
  Fields out;
  Walk walk(
      [&](const FieldInfo& info, FieldRef ref) {
        if (info.key.starts_with("layout.")) out.push_back({info.key, ref});
      },
      [](const std::string&, std::string_view) {});
  run.visit(walk);
  return out;
}

// Keys beside the axes that are not as a run file without them has them.
std::vector<size_t> set_keys(RunSpec run) {
  RunSpec defaults;
  const Fields mine = layout_fields(run), theirs = layout_fields(defaults);
  std::vector<size_t> out;
  for (size_t i = 0; i < mine.size(); i++) {
    const bool axis = mine[i].first.size() == std::string_view("layout.dp").size();
    const bool same =
        std::visit([&](auto* a) { return *a == *std::get<std::decay_t<decltype(a)>>(theirs[i].second); },
                   mine[i].second);
    if (!axis && !same) out.push_back(i);
  }
  return out;
}

void reset(RunSpec& run, size_t field) {
  RunSpec defaults;
  const FieldRef value = layout_fields(defaults)[field].second;
  std::visit([&](auto* a) { *a = *std::get<std::decay_t<decltype(a)>>(value); },
             layout_fields(run)[field].second);
}

// Every choice of at most kMostReset of them, fewer first.
std::vector<std::vector<size_t>> choices_of(const std::vector<size_t>& keys) {
  std::vector<std::vector<size_t>> out{{}};
  for (size_t size = 1, begin = 0; size <= kMostReset; size++) {
    const size_t end = out.size();
    for (size_t i = begin; i < end; i++)
      for (size_t k : keys)
        if (out[i].empty() || out[i].back() < k) {
          out.push_back(out[i]);
          out.back().push_back(k);
        }
    begin = end;
  }
  return out;
}

}  // namespace

namespace {

struct Near {
  std::optional<RunSpec> run;
  double cost = INFINITY;
};

RunSpec with_sizes(RunSpec run, const Sizes& s) {
  for (size_t i = 0; i < kSizes.size(); i++) run.layout.*kSizes[i] = s.of[i];
  run.layout.ep = s.ep;
  return run;
}
// The largest microbatch up to the run's own that divides what a rank has of the batch.
int64_t divisor_micro(const RunSpec& run) {
  const int64_t batch = divisor_of_batches(run.batch);
  if (batch % run.layout.dp != 0) return run.batch.micro;
  const int64_t own = batch / run.layout.dp;
  int64_t best = 1;
  for (int64_t low = 1; low <= own / low; low++) {
    if (own % low != 0) continue;
    for (const int64_t d : {low, own / low})
      if (d <= run.batch.micro) best = std::max(best, d);
  }
  return best;
}

// Every choice of at most two keys put back, beside sizes: the fewest keys.
void try_choices(const RunSpec& run, const Judge& judge, const std::vector<Sizes>& sizes, Near& best) {
  int tries = 0;
  for (const std::vector<size_t>& resets : choices_of(set_keys(run))) {
    RunSpec with = run;
    for (size_t key : resets) reset(with, key);
    for (const Sizes& s : sizes) {
      double cost = double(resets.size()) + s.cost;
      if (cost >= best.cost) break;
      if (++tries > kMostTries) return;
      RunSpec tried = with_sizes(with, s);
      if (!judge.works(tried)) {  // perhaps with microbatches that divide the batch
        tried.batch.micro = divisor_micro(tried);
        cost += cost_of(run.batch.micro, tried.batch.micro);
        if (tried.batch.micro == run.batch.micro || cost >= best.cost || !judge.works(tried)) continue;
      }
      best.run = tried, best.cost = cost;
    }
  }
}

// The first of the keys that the problem is about which can be put back: neither an axis nor as it was.
std::optional<size_t> to_put_back(RunSpec& run, const Problem& wrong) {
  const Fields all = layout_fields(run);
  const std::vector<size_t> set = set_keys(run);
  for (const std::string& key : wrong.keys)
    for (size_t field : set)
      if (all[field].first == key) return field;
  return {};
}

// Puts back what is complained about, until nothing is or nothing helps; then takes again what does no harm.
std::optional<std::vector<size_t>> mend(RunSpec& run, const Judge& judge) {
  const RunSpec asked = run;
  std::vector<size_t> resets;
  for (std::vector<Problem> wrong; !(wrong = judge.problems(run)).empty();) {
    const size_t before = resets.size();
    for (const Problem& p : wrong)
      if (const auto field = to_put_back(run, p)) resets.push_back(*field), reset(run, *field);
    if (resets.size() > before) continue;
    const int64_t micro = divisor_micro(run);
    if (micro == run.batch.micro) return {};
    run.batch.micro = micro;
  }
  for (size_t i = resets.size(); i-- > 0;) {
    RunSpec fewer = asked;
    fewer.batch.micro = run.batch.micro;
    for (size_t k = 0; k < resets.size(); k++)
      if (k != i) reset(fewer, resets[k]);
    if (judge.works(fewer)) run = fewer, resets.erase(resets.begin() + std::ptrdiff_t(i));
  }
  return resets;
}

// Also where more keys than two are in the way.
void try_mending(const RunSpec& run, const Judge& judge, const std::vector<Sizes>& sizes, Near& best) {
  constexpr int kMostMended = 12;
  for (int n = 0; n < std::min(kMostMended, int(sizes.size())); n++) {
    RunSpec tried = with_sizes(run, sizes[size_t(n)]);
    if (sizes[size_t(n)].cost >= best.cost) return;
    const auto resets = mend(tried, judge);
    if (!resets) continue;
    const double cost =
        double(resets->size()) + sizes[size_t(n)].cost + cost_of(run.batch.micro, tried.batch.micro);
    if (cost < best.cost) best.run = tried, best.cost = cost;
  }
}

}  // namespace

namespace {

// A schedule of a name that takes other chunks than are asked for: with them it is nearer to what was asked
// for than any other schedule.
void try_chunks(const RunSpec& run, const Judge& judge, const std::vector<Sizes>& sizes, Near& best) {
  constexpr double kNearer = 0.5;  // than a key put back
  constexpr int64_t kMostChunks = 8;
  constexpr size_t kMostLooked = 12;
  for (int64_t chunks = 1; chunks <= kMostChunks; chunks++) {
    if (chunks == run.layout.chunks) continue;
    for (size_t i = 0; i < std::min(kMostLooked, sizes.size()); i++) {
      const double cost = kNearer + sizes[i].cost + cost_of(1, chunks) / 1000;
      if (cost >= best.cost) break;
      RunSpec tried = with_sizes(run, sizes[i]);
      tried.layout.chunks = chunks;
      if (judge.works(tried)) best.run = tried, best.cost = cost;
    }
  }
}

}  // namespace

std::optional<RunSpec> nearest_layout(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  for (auto size : kSizes)
    if (l.*size < 1 || l.*size > kMostRanks) return {};
  if (l.ep < 1 || double(l.pp) * double(l.dp) * double(l.cp) * double(l.tp) > double(kMostRanks)) return {};
  const std::vector<Sizes> sizes = sizes_of(l);
  const Judge judge(run);
  Near best;
  try_chunks(run, judge, sizes, best);
  try_mending(run, judge, sizes, best);  // says soon what is not worth trying
  try_choices(run, judge, sizes, best);
  return best.run;
}

std::string nearest_layout_text(const RunSpec& run) {
  const std::optional<RunSpec> nearest = nearest_layout(run);
  if (!nearest) return "";
  const std::vector<FieldText> before = fields_of(run), after = fields_of(*nearest);
  std::string changes;
  for (size_t i = 0; i < before.size(); i++)
    if (before[i].value != after[i].value)
      changes += fmt::format("{}{} = {}", changes.empty() ? "" : ", ", after[i].key, after[i].value);
  if (changes.empty()) return "";
  const int64_t ranks = run.world();
  return fmt::format("; the nearest layout of {} that works: {}",
                     ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks), changes);
}

}  // namespace trireme
