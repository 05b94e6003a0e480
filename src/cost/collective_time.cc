#include "cost/collective_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace trireme {
namespace {

using Kind = CollectiveKind;
using Way = CollectiveWay;

constexpr std::string_view kKindNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                           "all_to_all", "broadcast",  "p2p"};
constexpr std::string_view kWayNames[] = {"ring",      "tree",  "halving", "hierarchical",
                                          "in-switch", "torus", "direct"};

// A level that the group spans.
struct GroupLevel {
  int64_t count = 1;    // units of the group here
  int64_t below = 1;    // ranks of the group in each
  double round = 0;     // s
  double latency = 0;   // s, of a lone message
  double message = 0;   // s
  double share = 0;     // bytes/s that a rank has; of a torus, on one cable. 0 = not known
  double together = 0;  // bytes/s that the ranks of one node have
  double reduce = 0;    // bytes/s of a rank to and from switches that add up; 0 = they do not
  double ramp = 0;      // s
  const TierSpec* torus = nullptr;
};

// Rounds and bytes, each in seconds; the longest ramp of the levels.
struct Parts {
  double rounds = 0, bytes = 0, ramp = 0;
  double seconds() const { return rounds + bytes + 2 * std::sqrt(ramp * bytes); }
};

double over(double bytes, double bandwidth) {
  return bandwidth > 0 ? bytes / bandwidth : 0;
}
double log2_up(int64_t n) {
  return n <= 1 ? 0 : std::ceil(std::log2(double(n)));
}
// n ranks hand on what they do not own themselves: (n - 1) / n.
double others(int64_t n) {
  return double(n - 1) / double(n);
}

class Group {
 public:
  Group(const Placement& p, const ClusterSpec& c) : tiers_(c.levels()) {
    require(!p.counts.empty() && p.counts.size() <= tiers_.size() + 1, "a placement has a count a level");
    const double sharing = double(p.sharing > 0 ? p.sharing : c.devices_per_node);
    in_node_ = p.counts[0];
    for (size_t i = 0; i < p.counts.size(); i++) {
      require(p.counts[i] >= 1, "counts of a placement are at least 1");
      const LinkSpec& link = i == 0 ? c.intra_node : tiers_[i - 1].link;
      const double long_run = link.bandwidth * link.efficiency;
      GroupLevel l{.count = p.counts[i],
                   .below = size_,
                   .round = link.round > 0 ? link.round : link.latency,
                   .latency = link.latency,
                   .message = link.message,
                   .share = i == 0 ? long_run : long_run / sharing,
                   .ramp = link.ramp};
      l.together = i == 0 ? long_run : l.share * double(in_node_);
      l.reduce = i == 0 ? link.reduce_bandwidth : link.reduce_bandwidth / sharing;
      if (i > 0 && tiers_[i - 1].torus()) l.torus = &tiers_[i - 1];
      size_ *= l.count;
      if (l.count > 1) levels_.push_back(l);
    }
  }

  std::optional<Parts> parts(Kind kind, Way way, double bytes) const {
    std::optional<Parts> p;
    const bool on_torus = has_torus();
    if (way == Way::ring && !on_torus) p = ring(kind, bytes);
    if (way == Way::tree && !on_torus) p = tree(kind, bytes);
    if (way == Way::halving && !on_torus) p = halving(kind, bytes);
    if (way == Way::hierarchical && !on_torus) p = by_level(kind, bytes);
    if (way == Way::in_switch && !on_torus) p = in_switch(kind, bytes);
    if (way == Way::torus && on_torus) p = by_level(kind, bytes);
    if (way == Way::direct) p = direct(kind, bytes);
    if (p)
      for (const GroupLevel& l : levels_) p->ramp = std::max(p->ramp, l.ramp);
    if (p && kind == Kind::p2p) p->ramp = 0;
    return p;
  }
  int64_t size() const { return size_; }

 private:
  std::vector<TierSpec> tiers_;  // of the cluster
  std::vector<GroupLevel> levels_;
  int64_t size_ = 1, in_node_ = 1;

  bool has_torus() const {
    return std::any_of(levels_.begin(), levels_.end(), [](const GroupLevel& l) { return l.torus; });
  }
  static bool halves(Kind k) { return k == Kind::all_gather || k == Kind::reduce_scatter; }
  static double passes(Kind k) { return k == Kind::all_reduce ? 2 : 1; }
  bool within_node() const { return size_ == in_node_; }

  // Bytes/s at which one ring, or one stream down a tree, passes the slowest level; 0 = none is known.
  double pace() const {
    double slowest = 0;
    for (const GroupLevel& l : levels_)
      if (l.together > 0 && (slowest == 0 || l.together < slowest)) slowest = l.together;
    return slowest;
  }

  std::optional<Parts> ring(Kind kind, double bytes) const {
    if (kind == Kind::all_to_all || kind == Kind::p2p) return {};
    Parts p;
    for (const GroupLevel& l : levels_) {  // of n - 1 hops so many are at this level
      const double units = double(size_ / l.below), above = double(size_ / (l.below * l.count));
      p.rounds += passes(kind) * (units - above) * l.round;
    }
    p.bytes = over(kind == Kind::broadcast ? bytes : passes(kind) * others(size_) * bytes, pace());
    return p;
  }

  // An all_reduce between nodes by trees, of which each rank of a node sees to its share of the bytes: levels
  // whose switches add up take all of it once, up and down at the same time.
  Parts tree_above_node(double bytes, bool reducing) const {
    const double part = bytes / double(in_node_), trees = size_ / in_node_ == 2 ? 1 : 2;
    Parts p;
    for (size_t i = in_node_ > 1 ? 1 : 0; i < levels_.size(); i++) {
      const GroupLevel& l = levels_[i];
      const bool adds = reducing && l.reduce > 0;
      p.rounds += 2 * (adds ? 1 : log2_up(l.count)) * l.round;
      p.bytes = std::max(p.bytes, adds ? over(part, l.reduce) : over(trees * part, l.share));
    }
    return p;
  }
  const GroupLevel* node_level() const { return in_node_ > 1 ? &levels_.front() : nullptr; }

  std::optional<Parts> tree(Kind kind, double bytes) const {
    if (kind != Kind::all_reduce && kind != Kind::broadcast) return {};
    if (kind == Kind::broadcast) {
      Parts p;
      for (const GroupLevel& l : levels_) p.rounds += log2_up(l.count) * l.round;
      p.bytes = over(bytes, pace());
      return p;
    }
    const GroupLevel* node = node_level();
    Parts p = tree_above_node(bytes, false);
    if (node) {
      p.rounds += 2 * log2_up(in_node_) * node->round;
      // Two trees over the ranks of one node; reduce_scatter and all_gather in each of several.
      const double trees = in_node_ == 2 ? 1 : 2;
      p.bytes = std::max(p.bytes, over((within_node() ? trees : 2 * others(in_node_)) * bytes, node->share));
    }
    return p;
  }

  // The far exchanges come first, and with half of the data: across levels that is for `hierarchical`.
  std::optional<Parts> halving(Kind kind, double bytes) const {
    if ((kind != Kind::all_reduce && !halves(kind)) || levels_.size() != 1) return {};
    const GroupLevel& l = levels_.front();
    return Parts{.rounds = passes(kind) * log2_up(size_) * l.round,
                 .bytes = over(passes(kind) * others(size_) * bytes, l.share)};
  }

  // reduce_scatter from the nearest level up and all_gather back down, each on what the last one left. For a
  // broadcast a scatter from the root and an all_gather: twice an all_gather.
  std::optional<Parts> by_level(Kind kind, double bytes) const {
    if (kind == Kind::p2p || (kind == Kind::all_to_all && !has_torus())) return {};
    if (kind == Kind::all_to_all) return torus_all_to_all(bytes);
    const double times = kind == Kind::broadcast ? 2 : passes(kind);
    Parts p;
    for (const GroupLevel& l : levels_) {
      const double part = bytes / double(l.below);
      double rounds = log2_up(l.count), cables = 1;
      if (l.torus) rounds = torus_hops(l), cables = torus_cables(l);
      p.rounds += times * rounds * l.round;
      p.bytes += times * over(others(l.count) * part, l.share * cables);
    }
    return p;
  }

  std::optional<Parts> in_switch(Kind kind, double bytes) const {
    const GroupLevel* node = node_level();
    const bool in_node = node && node->reduce > 0;
    const bool above = std::any_of(levels_.begin(), levels_.end(),
                                   [&](const GroupLevel& l) { return &l != node && l.reduce > 0; });
    if (kind == Kind::all_reduce && (in_node || above)) {
      Parts p = tree_above_node(bytes, true);
      if (!node) return p;
      p.rounds += 2 * (in_node ? 1 : log2_up(in_node_)) * node->round;
      const double inside = in_node ? over((1 + 1 / double(in_node_)) * bytes, node->reduce)
                                    : over(2 * others(in_node_) * bytes, node->share);
      p.bytes = std::max(p.bytes, inside);
      return p;
    }
    // Every device hands over, or is handed, all N bytes: more than a ring's, in one round.
    if (halves(kind) && in_node && within_node())
      return Parts{.rounds = node->round, .bytes = over(bytes, node->reduce)};
    return {};
  }

  // Everybody to everybody: what each level's share of a rank carries, all at once.
  std::optional<Parts> direct(Kind kind, double bytes) const {
    Parts p;
    if (kind == Kind::p2p) {
      for (const GroupLevel& l : levels_) {
        p.rounds = std::max(p.rounds, l.latency);
        p.bytes = std::max(p.bytes, over(bytes, l.share));
      }
      return p;
    }
    if (kind != Kind::all_to_all || has_torus()) return {};
    double rounds = 0;
    for (const GroupLevel& l : levels_) {
      const double peers = double(size_ - l.below), here = double(l.below * (l.count - 1));
      rounds = std::max(rounds, l.round);
      p.rounds += here * l.message;
      // All that leaves the units of the level below passes here, if it goes further up or not; in the node
      // only what stays in it.
      p.bytes = std::max(
          p.bytes, over((l.below == 1 && in_node_ > 1 ? here : peers) / double(size_) * bytes, l.share));
    }
    p.rounds += rounds;
    return p;
  }

  // Sides of the part of a torus that `count` units take: innermost dims first, whole where they divide.
  struct Side {
    int64_t length = 1;
    bool closed = false;  // a ring, not a line: cables both ways round
  };
  static std::vector<Side> sides(const GroupLevel& l) {
    std::vector<Side> out;
    int64_t left = l.count;
    for (auto d = l.torus->dims.rbegin(); d != l.torus->dims.rend() && left > 1; ++d) {
      const int64_t whole = int64_t(*d), length = std::gcd(left, whole);
      if (length > 1) out.push_back({length, length == whole && whole > 2});
      left /= length;
    }
    if (left > 1) out.assign(1, {l.count, false});  // fits no box: a line through all
    return out;
  }
  static double torus_cables(const GroupLevel& l) {
    double cables = 0;
    for (const Side& s : sides(l)) cables += s.closed ? 2 : 1;
    return cables;
  }
  static double torus_hops(const GroupLevel& l) {
    double hops = 0;
    for (const Side& s : sides(l)) hops += s.closed ? std::floor(double(s.length) / 2) : double(s.length - 1);
    return hops;
  }
  // Along a side of X each rank's N bytes go X/4 hops on average over two cables (a line: X/2 over its
  // middle's one, both ways); messages go along one dim after the other, all dims at work on other parts.
  Parts torus_all_to_all(double bytes) const {
    Parts p;
    for (const GroupLevel& l : levels_) {
      const double leaving = double(size_ - l.below) / double(size_) * bytes;
      if (!l.torus) {
        p.rounds += l.round, p.bytes = std::max(p.bytes, over(leaving, l.share));
        continue;
      }
      p.rounds += torus_hops(l) * l.round;
      for (const Side& s : sides(l)) {
        const double carried = bytes * double(s.length) / (s.closed ? 8 : 4);
        p.bytes = std::max(p.bytes, over(carried, l.share));
      }
    }
    return p;
  }
};

}  // namespace

std::string_view name_of(CollectiveKind k) {
  return kKindNames[size_t(k)];
}
std::string_view name_of(CollectiveWay w) {
  return kWayNames[size_t(w)];
}

int64_t Placement::size() const {
  int64_t n = 1;
  for (int64_t c : counts) n *= c;
  return n;
}

namespace {

// left: how many times the cluster would have to be as large.
Placement spread(const ClusterSpec& cluster, int64_t ranks, int64_t stride, int64_t& left) {
  require(ranks >= 1 && stride >= 1, "a group has ranks");
  Placement p;
  std::vector<int64_t> room = {cluster.devices_per_node};
  for (const TierSpec& t : cluster.levels()) room.push_back(t.size);
  left = ranks;
  int64_t apart = stride;  // units of this level between neighbours of the group
  for (int64_t r : room) {
    const int64_t here = std::min(left, std::max<int64_t>(1, r / apart));
    p.counts.push_back(here);
    left = (left + here - 1) / here;
    apart = std::max<int64_t>(1, (apart + r - 1) / r);
  }
  return p;
}

}  // namespace

Placement place_beyond(const ClusterSpec& cluster, int64_t ranks, int64_t stride) {
  int64_t left = 1;
  Placement p = spread(cluster, ranks, stride, left);
  p.counts.back() *= left;
  return p;
}

Placement place(const ClusterSpec& cluster, int64_t ranks, int64_t stride) {
  int64_t left = 1;
  Placement p = spread(cluster, ranks, stride, left);
  if (left > 1)
    bad_request("{} ranks, each {} from the next, are more than the {} devices of cluster {}", ranks, stride,
                cluster.devices(), cluster.name.empty() ? "given" : cluster.name);
  return p;
}

std::optional<double> collective_seconds(CollectiveKind kind, CollectiveWay way, double bytes,
                                         const Placement& placement, const ClusterSpec& cluster) {
  const Group group(placement, cluster);
  const std::optional<Parts> p = group.parts(kind, way, bytes);
  if (!p) return {};
  if (group.size() == 1) return 0;
  return p->seconds() + (kind == Kind::p2p ? 0 : cluster.launch);
}

namespace {
constexpr Way kLibraryWays[] = {Way::ring, Way::tree, Way::in_switch, Way::torus, Way::direct};
}  // namespace

double CollectiveLine::at(double bytes) const {
  const double t = bytes * per_byte;
  return fixed + t + 2 * std::sqrt(ramp * t);
}

std::vector<CollectiveLine> collective_lines(CollectiveKind kind, const Placement& placement,
                                             const ClusterSpec& cluster) {
  const Group group(placement, cluster);
  std::vector<CollectiveLine> lines;
  if (group.size() == 1) return lines;
  const double launch = kind == Kind::p2p ? 0 : cluster.launch;
  for (const Way way : kLibraryWays)
    if (const std::optional<Parts> p = group.parts(kind, way, 1))
      lines.push_back({.fixed = p->rounds + launch, .per_byte = p->bytes, .ramp = p->ramp});
  return lines;
}

CollectiveTime collective_time(CollectiveKind kind, double bytes, const Placement& placement,
                               const ClusterSpec& cluster) {
  std::optional<CollectiveTime> best;
  for (const Way way : kLibraryWays) {
    const std::optional<double> s = collective_seconds(kind, way, bytes, placement, cluster);
    if (s && (!best || *s < best->seconds)) best = {*s, way};
  }
  require(best.has_value(), "some way does every collective");
  return *best;
}

double bus_bandwidth(CollectiveKind kind, double bytes, int64_t ranks, double seconds) {
  if (seconds <= 0) return 0;
  if (kind == Kind::broadcast || kind == Kind::p2p) return bytes / seconds;
  return (kind == Kind::all_reduce ? 2 : 1) * others(ranks) * bytes / seconds;
}

}  // namespace trireme
