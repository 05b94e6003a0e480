#include "report/clocks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <limits>
#include <map>
#include <string>

namespace trireme {
namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
constexpr size_t kMostCalls = 512;  // compared per group and step

// clock(a) - clock(b) is at least low and at most high.
struct Bounds {
  int64_t low = -kFar, high = kFar;
};

// The calls of a rank by group, or by lane where they are messages of a pipeline.
using ByName = std::map<std::string_view, std::vector<const Span*>>;
ByName by_name(const RankCalls& r) {
  ByName all;
  for (const Span& s : r.calls) {
    const bool message = sender_of(s.lane) >= 0 || receiver_of(s.lane) >= 0;
    std::vector<const Span*>& one = all[message ? s.lane : s.group];
    if (one.size() < kMostCalls) one.push_back(&s);
  }
  return all;
}

int number_behind(std::string_view text, std::string_view word) {
  const size_t at = text.rfind(word);
  if (!text.starts_with("pp ") || at == text.npos) return -1;
  int rank = -1;
  const std::string_view digits = text.substr(at + word.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  return rank;
}

class ClockBounds {
 public:
  ClockBounds(const Mesh& mesh, std::span<const RankCalls> ranks) : mesh_(mesh), ranks_(ranks) {
    for (size_t i = 0; i < ranks.size(); i++) {
      index_[ranks[i].rank] = i;
      names_.push_back(by_name(ranks[i]));
    }
    for (size_t i = 0; i < ranks.size(); i++)
      for (const auto& [name, calls] : names_[i]) {
        const int from = sender_of(name);
        if (from >= 0)
          messages(i, from, name, calls);
        else if (receiver_of(name) < 0)
          collectives(i, name, calls);
      }
  }

  std::vector<int64_t> offsets() const {
    std::vector<int64_t> out(ranks_.size(), 0);
    std::vector<bool> done(ranks_.size(), false);
    for (size_t first = 0; first < ranks_.size(); first++) {
      if (done[first]) continue;
      done[first] = true;
      std::deque<size_t> open = {first};
      while (!open.empty()) {
        const size_t a = open.front();
        open.pop_front();
        for (const auto& [pair, bounds] : bounds_) {
          if (pair.first != a && pair.second != a) continue;
          const size_t b = pair.first == a ? pair.second : pair.first;
          if (done[b]) continue;
          // clock(first) - clock(second)
          const int64_t difference = middle(bounds);
          out[b] = pair.first == a ? out[a] - difference : out[a] + difference;
          done[b] = true;
          open.push_back(b);
        }
      }
    }
    return out;
  }

 private:
  static int64_t middle(const Bounds& b) {
    if (b.low <= 0 && b.high >= 0) return 0;
    if (b.low == -kFar) return b.high;
    if (b.high == kFar) return b.low;
    return b.low + (b.high - b.low) / 2;
  }
  // later happened on rank i no earlier than `earlier` on rank j.
  void follows(size_t i, int64_t later, size_t j, int64_t earlier) {
    Bounds& b = bounds_[{std::min(i, j), std::max(i, j)}];
    const int64_t difference = later - earlier;  // clock(i) - clock(j) is at most this
    if (i < j)
      b.high = std::min(b.high, difference);
    else
      b.low = std::max(b.low, -difference);
  }
  void collectives(size_t i, std::string_view name, const std::vector<const Span*>& calls) {
    const std::vector<int> group = ranks_of_group(mesh_, ranks_[i].rank, name);
    if (group.size() < 2 || group.front() == ranks_[i].rank) return;
    const auto leader = index_.find(group.front());
    if (leader == index_.end()) return;
    const auto its = names_[leader->second].find(name);
    if (its == names_[leader->second].end() || its->second.size() != calls.size()) return;
    for (size_t k = 0; k < calls.size(); k++) {
      if (calls[k]->name != its->second[k]->name) return;
      if (calls[k]->name == "p2p" && group.size() > 2) continue;  // a ring: the partner may be another rank
      follows(i, calls[k]->met_ns, leader->second, its->second[k]->begin_ns);
      follows(leader->second, its->second[k]->met_ns, i, calls[k]->begin_ns);
    }
  }
  // `lane`: "pp forward from 0" of rank i.
  void messages(size_t i, int from, std::string_view lane, const std::vector<const Span*>& calls) {
    static constexpr std::array kAxis = {Axis::pp};
    if (ranks_[i].rank >= mesh_.world()) return;  // without a plan the mesh has one rank
    const std::vector<int> stages = mesh_.group(ranks_[i].rank, kAxis);
    if (size_t(from) >= stages.size()) return;
    const auto sender = index_.find(stages[size_t(from)]);
    if (sender == index_.end()) return;
    const std::string there = std::string(lane.substr(0, lane.rfind(" from "))) + " to " +
                              std::to_string(mesh_.coord(ranks_[i].rank, Axis::pp));
    const auto its = names_[sender->second].find(there);
    if (its == names_[sender->second].end() || its->second.size() != calls.size()) return;
    for (size_t k = 0; k < calls.size(); k++)
      follows(i, std::max(calls[k]->met_ns, calls[k]->begin_ns), sender->second, its->second[k]->begin_ns);
  }

  const Mesh& mesh_;
  std::span<const RankCalls> ranks_;
  std::map<int, size_t> index_;
  std::vector<ByName> names_;
  std::map<std::pair<size_t, size_t>, Bounds> bounds_;
};

}  // namespace

std::vector<int> ranks_of_group(const Mesh& mesh, int rank, std::string_view name) {
  std::string_view axes = name.substr(0, name.find(' '));
  if (const std::string_view kind = name.substr(axes.size()); !kind.empty() && kind != " again") return {};
  std::vector<Axis> along;
  while (!axes.empty()) {
    const size_t end = std::min(axes.find('+'), axes.size());
    const std::string_view one = axes.substr(0, end);
    axes.remove_prefix(std::min(axes.size(), end + 1));
    bool found = false;
    for (Axis a : {Axis::pp, Axis::dp, Axis::cp, Axis::tp, Axis::ep, Axis::edp})
      if (name_of(a) == one) {
        along.push_back(a);
        found = true;
      }
    if (!found) return {};
  }
  if (along.empty() || rank >= mesh.world()) return {};
  return mesh.group(rank, along);
}

int sender_of(std::string_view lane) {
  return number_behind(lane, " from ");
}
int receiver_of(std::string_view lane) {
  return number_behind(lane, " to ");
}

std::vector<int64_t> clock_offsets(const Mesh& mesh, std::span<const RankCalls> ranks) {
  if (ranks.size() < 2) return std::vector<int64_t>(ranks.size(), 0);
  return ClockBounds(mesh, ranks).offsets();
}

}  // namespace trireme
