#include "spec/nearest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/divisors.h"
#include "base/error.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"
#include "spec/walk.h"

namespace trireme {
namespace {

constexpr int64_t kMostRanks = 1 << 14;
constexpr size_t kMostSizes = 20'000;
constexpr int kMostTries = 5'000;  // tens of milliseconds
constexpr size_t kMostReset = 2;
constexpr auto kSizes = std::array{&LayoutSpec::pp, &LayoutSpec::dp, &LayoutSpec::cp, &LayoutSpec::tp};

bool works(const RunSpec& run) {
  if (!problems_of(run).empty() || !unsupported_of(run).empty()) return false;
  if (has_own_schedule(run.layout)) return true;
  try {
    schedule_of(run);
    return true;
  } catch (const Error&) {
    return false;
  }
}

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

std::optional<RunSpec> nearest_layout(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  for (auto size : kSizes)
    if (l.*size < 1 || l.*size > kMostRanks) return {};
  if (l.ep < 1 || double(l.pp) * double(l.dp) * double(l.cp) * double(l.tp) > double(kMostRanks)) return {};
  std::optional<RunSpec> best;
  double least = INFINITY;
  const std::vector<Sizes> sizes = sizes_of(l);
  int tries = 0;
  for (const std::vector<size_t>& resets : choices_of(set_keys(run))) {
    RunSpec with = run;
    for (size_t key : resets) reset(with, key);
    for (const Sizes& s : sizes) {
      double cost = double(resets.size()) + s.cost;
      if (cost >= least) break;
      if (++tries > kMostTries) return best;
      RunSpec tried = with;
      for (size_t i = 0; i < kSizes.size(); i++) tried.layout.*kSizes[i] = s.of[i];
      tried.layout.ep = s.ep;
      if (!works(tried)) {  // perhaps with microbatches that divide the batch
        if (run.batch.global % tried.layout.dp != 0) continue;
        tried.batch.micro = std::gcd(run.batch.micro, run.batch.global / tried.layout.dp);
        cost += cost_of(run.batch.micro, tried.batch.micro);
        if (tried.batch.micro == run.batch.micro || cost >= least || !works(tried)) continue;
      }
      best = tried, least = cost;
    }
  }
  return best;
}

std::string nearest_layout_text(const RunSpec& run) {
  const std::optional<RunSpec> nearest = nearest_layout(run);
  if (!nearest) return "";
  const std::vector<FieldText> before = fields_of(run), after = fields_of(*nearest);
  std::string changes;
  for (size_t i = 0; i < before.size(); i++)
    if (before[i].value != after[i].value)
      changes += fmt::format("{}{} = {}", changes.empty() ? "" : ", ", after[i].key, after[i].value);
  return changes.empty() ? "" : "; the nearest layout that works: " + changes;
}

}  // namespace trireme
