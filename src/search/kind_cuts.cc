#include "search/kind_cuts.h"

#include <algorithm>
#include <cmath>

#include "cost/stage_time.h"
#include "model/stages.h"
#include "schedule/schedule.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// Layers are shared out by these powers of the kinds' speeds: with tp, small microbatches and waits, the
// faster kind is ahead by less than on a whole layer.
constexpr double kPowers[] = {0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25};

}  // namespace

KindCuts::KindCuts(const LayoutCase& q) : q_(q) {}

const std::vector<const NumberList*>& KindCuts::of(std::string_view schedule, int64_t chunks,
                                                   const NumberList* devices) {
  const auto [it, fresh] = known_.try_emplace({schedule, chunks, devices});
  if (!fresh) return it->second;
  const StepCase block = step_case(q_, SearchLayout{});
  for (const int64_t number : *devices) {
    const auto [speed, unknown] = speeds_.try_emplace(number);
    const DeviceKinds::Kind& kind = q_.kinds->at(number);
    if (unknown)
      speed->second =
          1 / layer_actions(block, kind.figures, kind.fits, block.model.expert_blocks() > 0).total();
  }
  return it->second = find(schedule, chunks, *devices);
}

std::vector<const NumberList*> KindCuts::find(std::string_view schedule, int64_t chunks,
                                              const NumberList& devices) const {
  std::vector<const NumberList*> all = {nullptr};
  const auto pp = int64_t(devices.size());
  const int64_t stages = pp * chunks;
  const auto alike = [&](int64_t a, int64_t b) {
    return std::abs(speeds_.at(a) - speeds_.at(b)) < 1e-9 * speeds_.at(a) &&
           q_.kinds->at(a).figures.memory == q_.kinds->at(b).figures.memory;
  };
  if (stages > q_.model.layers ||
      std::all_of(devices.begin(), devices.end(), [&](int64_t d) { return alike(d, devices[0]); }))
    return all;
  const std::vector<int> holder = rank_of_stages(make_schedule(schedule, int(pp), int(chunks), int(pp)));
  NumberList plain;
  for (const StageRange& s : split_layers(q_.model, q_.seq, q_.keys.cut, nullptr, int(stages)))
    plain.push_back(s.last - s.first);
  const auto add = [&](auto&& speed_of) {
    std::vector<double> speeds;
    for (const int rank : holder) speeds.push_back(speed_of(devices[size_t(rank)]));
    const NumberList layers = split_by_speed(q_.model, q_.seq, speeds);
    const NumberList* one = interned(layers);
    if (layers != plain && std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
  };
  for (const double power : kPowers) add([&](int64_t d) { return std::pow(speeds_.at(d), power); });
  add([&](int64_t d) { return q_.kinds->at(d).figures.memory; });
  return all;
}

namespace {

// The stages that a layer may leave (or join). For each kind of devices they are the first and the last stage
// with the most (or the fewest) layers.
std::vector<size_t> ends_of(const NumberList& layers, const std::vector<int64_t>& kinds, bool most) {
  std::vector<size_t> chosen;
  for (size_t s = 0; s < layers.size(); s++) {
    const auto beats = [&](size_t o) {
      if (kinds[o] != kinds[s]) return false;
      return most ? layers[o] > layers[s] : layers[o] < layers[s];
    };
    size_t before = 0;
    size_t after = 0;
    bool best = true;
    for (size_t o = 0; o < layers.size(); o++) {
      best &= !beats(o);
      if (kinds[o] == kinds[s] && layers[o] == layers[s]) (o < s ? before : after) += o != s;
    }
    if (best && (before == 0 || after == 0)) chosen.push_back(s);
  }
  return chosen;
}

}  // namespace

std::vector<Priced> moved_layers(const LayoutCase& q, const Priced& from) {
  std::vector<Priced> better;
  const SearchLayout& l = from.layout;
  const NumberList& devices = *q.kinds->of_ranks(degrees_of(l));
  const int64_t stages = l.pp * l.chunks;
  if (l.pp == 1 || stages > q.model.layers) return better;
  const std::vector<int> holder =
      rank_of_stages(make_schedule(l.schedule, int(l.pp), int(l.chunks), int(l.pp)));
  std::vector<int64_t> kinds;
  for (const int rank : holder) kinds.push_back(devices[size_t(rank)]);
  Priced best = from;
  NumberList layers;
  for (const StageRange& s : split_layers(q.model, q.seq, q.keys.cut, l.stage_layers, int(stages)))
    layers.push_back(s.last - s.first);
  for (bool moved = true; moved;) {
    moved = false;
    const NumberList now = layers;
    for (const size_t a : ends_of(now, kinds, true))
      for (const size_t b : ends_of(now, kinds, false)) {
        if (a == b || now[a] <= 1) continue;
        NumberList other = now;
        other[a]--;
        other[b]++;
        SearchLayout one = l;
        one.stage_layers = interned(other);
        const Priced p = price_layout(q, one);
        if (p.score >= best.score || p.memory.used() > q.figures.memory * q.memory_share) continue;
        best = p;
        layers = other;
        moved = true;
      }
    if (moved) better.push_back(best);
  }
  return better;
}

}  // namespace trireme
