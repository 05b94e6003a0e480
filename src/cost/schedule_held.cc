#include "cost/schedule_held.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "schedule/schedule.h"

namespace trireme {
namespace {

// Microbatches for each rank that a V schedule needs until it repeats, and to end.
constexpr int64_t kUntilSteady = 6;

std::string_view name_of_v(PipelineOrder o) {
  switch (o) {
    case PipelineOrder::v_half:
      return "v-half";
    case PipelineOrder::v_min:
      return "v-min";
    case PipelineOrder::dualpipe_v:
      return "dualpipe-v";
    default:
      return "zb-v";
  }
}

bool within(const CountedMoment& a, const CountedMoment& b) {
  if (a.at != b.at || a.chunk != b.chunk) return false;
  for (size_t c = 0; c < 2; c++)
    if (a.before[c] > b.before[c] || a.waiting[c] > b.waiting[c]) return false;
  return true;
}
void add(std::vector<CountedMoment>& all, CountedMoment m, CountedMoment::At at, int chunk) {
  m.at = at;
  m.chunk = chunk;
  for (const CountedMoment& known : all)
    if (within(m, known)) return;
  std::erase_if(all, [&](const CountedMoment& known) { return within(known, m); });
  all.push_back(m);
}

void count(const std::vector<Action>& actions, int pp, std::vector<CountedMoment>& all) {
  using At = CountedMoment::At;
  CountedMoment now;
  for (const Action& a : actions) {
    const int chunk = a.stage < pp ? 0 : 1;
    int &before = now.before[size_t(chunk)], &waiting = now.waiting[size_t(chunk)];
    switch (a.kind) {
      case Act::F:
        before++;
        break;
      case Act::B:
        add(all, now, At::backward, chunk);
        before--;
        break;
      case Act::I:
        add(all, now, At::input, chunk);
        before--;
        waiting++;
        add(all, now, At::after_input, chunk);
        break;
      case Act::W:
        add(all, now, At::weight, chunk);
        waiting--;
        break;
      default:
        break;
    }
  }
}

}  // namespace

const std::vector<std::vector<CountedMoment>>& counted_moments(PipelineOrder order, int64_t pp,
                                                               int64_t microbatches) {
  using Ranks = std::vector<std::vector<CountedMoment>>;
  thread_local std::map<std::tuple<PipelineOrder, int64_t, int64_t>, Ranks> known;
  const int64_t m = std::min(microbatches, kUntilSteady * pp);
  const auto [it, missing] = known.try_emplace({order, pp, m});
  if (missing)
    for (const std::vector<Action>& actions : make_schedule(name_of_v(order), int(pp), 2, int(m)).ranks)
      count(actions, int(pp), it->second.emplace_back());
  return it->second;
}

}  // namespace trireme
