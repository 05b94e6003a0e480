#include "sim/world.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "sim/rank_program.h"

namespace trireme {

// What sets a rank's prices apart from those of its program: how much slower it computes, and the bandwidth
// that is left to each kind of group and to messages each way.
struct RankPace {
  double slower = 1;
  std::array<double, kGroupKinds> links;
  double on = 1, back = 1;
  bool fails = false;
  uint64_t over_network = 0;  // where links are shared: a bit for each group kind and peer, else 0
  RankPace() { links.fill(1); }
  auto key() const { return std::tie(slower, links, on, back, fails, over_network); }
  bool operator<(const RankPace& o) const { return key() < o.key(); }
};

namespace {

int64_t scaled(int64_t time, double by) {
  return by == 1 ? time : std::llround(double(time) * by);
}

// Groups of one kind over the whole mesh: of each rank the number of its group.
struct Division {
  GroupKind kind;
  std::vector<int> group_of;
  std::vector<std::vector<int>> ranks;
};

Division divide(const Mesh& mesh, GroupKind kind) {
  Division d{.kind = kind, .group_of = std::vector<int>(size_t(mesh.world()), -1), .ranks = {}};
  for (int r = 0; r < mesh.world(); r++) {
    if (d.group_of[size_t(r)] >= 0) continue;
    const std::vector<Axis> axes = axes_of(kind);
    d.ranks.push_back(mesh.group(r, axes));
    for (int m : d.ranks.back()) d.group_of[size_t(m)] = int(d.ranks.size()) - 1;
  }
  return d;
}

}  // namespace

struct WorldReplay::Owned {
  std::vector<RankProgram> programs;                              // by pipeline rank
  std::map<std::pair<int, RankPace>, std::vector<Price>> prices;  // of disturbed ones
  std::vector<RankPlace> places;                                  // as tapes
};

namespace {

class WorldBuilder {
 public:
  explicit WorldBuilder(const World& w)
      : w_(w), mesh_(w.mesh), owned_(std::make_shared<WorldReplay::Owned>()) {
    check();
    for (int p = 0; p < mesh_.size(Axis::pp); p++) owned_->programs.push_back(program_of(w, p));
    for (size_t k = 0; k < kGroupKinds; k++)
      if (mesh_.size(axes_of(GroupKind(k))) > 1) divisions_.push_back(divide(mesh_, GroupKind(k)));
    const std::array<Axis, 1> pp = {Axis::pp};
    pp_.resize(size_t(mesh_.world())), lines_.resize(size_t(mesh_.world()));
    for (int r = 0; r < mesh_.world(); r++) {
      pp_[size_t(r)] = mesh_.coord(r, Axis::pp);
      if (pp_[size_t(r)] > 0) continue;
      auto line = std::make_shared<const std::vector<int>>(mesh_.group(r, pp));
      for (int m : *line) lines_[size_t(m)] = line;
    }
    set_paces();
  }

  WorldReplay run(bool all_ranks) {
    WorldReplay out;
    out.all_ranks = all_ranks;
    refine();
    out.classes = classes();
    out.class_of = color_;
    out.pieces = count_pieces(out.classes, all_ranks);
    all_ranks ? place_all() : place_classes(out.classes);
    for (size_t i = 0; i < given_.size(); i++) out.tapes.push_back(tape_of(given_[i], owned_->places[i]));
    const auto begin = std::chrono::steady_clock::now();
    out.replay = replay(out.tapes);
    out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    out.owned = owned_;
    return out;
  }

 private:
  void check() const {
    const int world = mesh_.world(), nodes = (world + w_.node - 1) / w_.node;
    const Disturbance& d = w_.disturbed;
    if (w_.schedule.copies != 1)
      bad_request("a schedule with {} copies of each stage; a simulated world has one", w_.schedule.copies);
    if (int(w_.schedule.ranks.size()) != mesh_.size(Axis::pp))
      bad_request("a schedule of {} ranks on pp = {}", w_.schedule.ranks.size(), mesh_.size(Axis::pp));
    require(int(w_.work.stages.size()) == w_.schedule.stages, "a world has the work of each stage");
    const auto rank_there = [&](int r, std::string_view what) {
      if (r < 0 || r >= world) bad_request("{} {}: ranks are 0 to {}", what, r, world - 1);
    };
    for (const auto& [r, f] : d.slow_ranks) rank_there(r, "--slow");
    if (d.failing_rank >= 0) rank_there(d.failing_rank, "--fail");
    for (const auto& [n, f] : d.slow_links)
      if (n < 0 || n >= nodes)
        bad_request("--slow-link {}: nodes are 0 to {} ({} ranks each)", n, nodes - 1, w_.node);
  }

  int64_t count_pieces(const std::vector<RankClass>& classes, bool all_ranks) const {
    int64_t pieces = 0;
    for (const RankClass& c : classes)
      pieces += int64_t(owned_->programs[size_t(c.pp)].tape.pieces.size()) * (all_ranks ? c.ranks : 1);
    if (pieces > kMostReplayed)
      bad_request("{}{} events are too many to replay; right is at most {}: fewer microbatches{}",
                  all_ranks ? "--all-ranks: " : "", pieces, kMostReplayed,
                  all_ranks ? ", or classes that stand for their ranks" : "");
    return pieces;
  }

  int node_of(int rank) const { return rank / w_.node; }
  double link_of(int rank) const {
    const auto it = w_.disturbed.slow_links.find(node_of(rank));
    return it == w_.disturbed.slow_links.end() ? 1 : it->second;
  }
  double message_link(int from, int to) const {
    return link_among(from, to) == RankLink::node ? 1 : std::min(link_of(from), link_of(to));
  }
  RankLink link_among(int a, int b) const {
    return node_of(a) == node_of(b) ? RankLink::node : RankLink::network;
  }
  // Ranks ascend.
  RankLink link_among(const std::vector<int>& ranks) const { return link_among(ranks.front(), ranks.back()); }
  // A ring is as slow as its slowest link.
  double ring_link(const std::vector<int>& ranks) const {
    if (link_among(ranks) == RankLink::node) return 1;
    double least = 1;
    for (int r : ranks) least = std::min(least, link_of(r));
    return least;
  }

  void set_paces() {
    paces_.resize(size_t(mesh_.world()));
    const Disturbance& d = w_.disturbed;
    for (const auto& [r, f] : d.slow_ranks) paces_[size_t(r)].slower = f;
    if (d.failing_rank >= 0) paces_[size_t(d.failing_rank)].fails = true;
    if (w_.share_links) set_links();
    if (d.slow_links.empty()) return;
    for (const Division& kind : divisions_)
      for (const std::vector<int>& ranks : kind.ranks) {
        const double link = ring_link(ranks);
        for (int r : ranks) paces_[size_t(r)].links[size_t(kind.kind)] = link;
      }
    const int p = mesh_.size(Axis::pp);
    for (int r = 0; r < mesh_.world(); r++) {
      const std::vector<int>& line = *lines_[size_t(r)];
      const int at = pp_[size_t(r)];
      if (p > 1) paces_[size_t(r)].on = message_link(r, line[size_t((at + 1) % p)]);
      if (p > 1) paces_[size_t(r)].back = message_link(r, line[size_t((at + p - 1) % p)]);
    }
  }

  // Ranks of one class use links alike.
  void set_links() {
    for (size_t d = 0; d < divisions_.size(); d++)
      for (const std::vector<int>& ranks : divisions_[d].ranks)
        for (int r : ranks) paces_[size_t(r)].over_network |= uint64_t(link_among(ranks)) << d;
    const int p = mesh_.size(Axis::pp);
    for (int r = 0; r < mesh_.world(); r++)
      for (const int step : {1, p - 1}) {
        const int to = lines_[size_t(r)]->at(size_t((pp_[size_t(r)] + step) % p));
        paces_[size_t(r)].over_network |= uint64_t(link_among(r, to)) << (kGroupKinds + (step > 1));
      }
  }
  void place_links(int rank, RankPlace& p) const {
    if (!w_.share_links) return;
    for (const Division& d : divisions_)
      p.group_links.push_back(link_among(d.ranks[size_t(d.group_of[size_t(rank)])]));
    for (int to : *lines_[size_t(rank)]) p.peer_links.push_back(link_among(rank, to));
  }

  // Numbers for keys, in the order of their first rank.
  template <class KeyOf>
  int recolor(KeyOf&& key_of) {
    std::map<decltype(key_of(0)), int> numbers;
    std::vector<int> fresh(color_.size());
    for (size_t r = 0; r < color_.size(); r++)
      fresh[r] = numbers.try_emplace(key_of(int(r)), int(numbers.size())).first->second;
    color_ = std::move(fresh);
    return int(numbers.size());
  }

  // By division and group, a number that equal sets of members' classes share.
  std::vector<std::vector<int>> group_colors() const {
    std::vector<std::vector<int>> all;
    for (const Division& d : divisions_) {
      std::map<std::vector<int>, int> numbers;
      std::vector<int>& of = all.emplace_back();
      for (const std::vector<int>& ranks : d.ranks) {
        std::vector<int> set;
        for (int r : ranks) set.push_back(color_[size_t(r)]);
        std::sort(set.begin(), set.end());
        set.erase(std::unique(set.begin(), set.end()), set.end());
        of.push_back(numbers.try_emplace(std::move(set), int(numbers.size())).first->second);
      }
    }
    return all;
  }

  void refine() {
    color_.assign(paces_.size(), 0);
    int count = recolor([&](int r) { return std::pair(pp_[size_t(r)], paces_[size_t(r)]); });
    while (true) {
      const auto groups = group_colors();
      std::map<std::vector<int>, int> line_numbers;
      std::unordered_map<const void*, int> line_color;
      for (const auto& line : lines_) {
        if (line_color.count(line.get())) continue;
        std::vector<int> colors;
        for (int r : *line) colors.push_back(color_[size_t(r)]);
        line_color[line.get()] =
            line_numbers.try_emplace(std::move(colors), int(line_numbers.size())).first->second;
      }
      const int finer = recolor([&](int r) {
        std::array<int, kGroupKinds + 2> key{};
        key[0] = color_[size_t(r)], key[1] = line_color.at(lines_[size_t(r)].get());
        for (size_t d = 0; d < divisions_.size(); d++)
          key[d + 2] = groups[d][size_t(divisions_[d].group_of[size_t(r)])];
        return key;
      });
      if (finer == count) return;
      count = finer;
    }
  }

  bool disturbed(int rank) const {
    const Disturbance& d = w_.disturbed;
    return d.slow_ranks.count(rank) || d.failing_rank == rank || d.slow_links.count(node_of(rank));
  }

  // In the order of pipeline ranks; colours become their numbers.
  std::vector<RankClass> classes() {
    recolor([&](int r) { return color_[size_t(r)]; });  // by first rank
    std::vector<RankClass> list;
    for (int r = 0; r < mesh_.world(); r++) {
      const auto c = size_t(color_[size_t(r)]);
      if (c == list.size()) list.push_back({.rank = r, .pp = pp_[size_t(r)]});
      list[c].ranks++;
      list[c].disturbed |= disturbed(r);
    }
    std::vector<int> order(list.size()), number(list.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = int(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return list[size_t(a)].pp < list[size_t(b)].pp; });
    std::vector<RankClass> sorted;
    for (size_t i = 0; i < order.size(); i++)
      number[size_t(order[i])] = int(i), sorted.push_back(list[size_t(order[i])]);
    for (int& c : color_) c = number[size_t(c)];
    return sorted;
  }

  // Numbers of groups that differ by kind too.
  static int64_t group_number(size_t division, int group) { return int64_t(division) << 32 | group; }

  void place_all() {
    for (int r = 0; r < mesh_.world(); r++) {
      RankPlace p;
      for (size_t d = 0; d < divisions_.size(); d++)
        p.groups.push_back(group_number(d, divisions_[d].group_of[size_t(r)]));
      p.peers = *lines_[size_t(r)];
      add(r, std::move(p));
    }
  }
  // A class calls with the classes of its group's members, each once, and sends to the class of its
  // neighbour: those ranks' own neighbours are of this class again, for classes are stable under refine().
  void place_classes(const std::vector<RankClass>& classes) {
    const auto groups = group_colors();
    for (const RankClass& c : classes) {
      RankPlace p;
      for (size_t d = 0; d < divisions_.size(); d++)
        p.groups.push_back(group_number(d, groups[d][size_t(divisions_[d].group_of[size_t(c.rank)])]));
      for (int r : *lines_[size_t(c.rank)]) p.peers.push_back(classes[size_t(color_[size_t(r)])].rank);
      add(c.rank, std::move(p));
    }
  }
  void add(int rank, RankPlace p) {
    place_links(rank, p);
    given_.push_back(rank);
    owned_->places.push_back(std::move(p));
  }

  RankTape tape_of(int rank, const RankPlace& place) {
    const RankProgram& program = owned_->programs[size_t(pp_[size_t(rank)])];
    RankTape t{.rank = rank, .tape = &program.tape, .prices = prices_of(rank), .place = &place};
    if (rank == w_.disturbed.failing_rank) t.fails = w_.disturbed.fails_at;
    return t;
  }
  std::span<const Price> prices_of(int rank) {
    const int pp = pp_[size_t(rank)];
    const RankPace& pace = paces_[size_t(rank)];
    const RankProgram& program = owned_->programs[size_t(pp)];
    const auto [it, fresh] = owned_->prices.try_emplace({pp, pace});
    if (!fresh) return it->second;
    it->second = program.prices;
    for (size_t i = 0; i < program.prices.size(); i++) {
      const Piece& p = program.tape.pieces[i];
      int64_t& time = it->second[i].time;
      if (p.kind == PieceKind::op) time = scaled(time, pace.slower);
      if (p.kind == PieceKind::call)
        time = scaled(time, 1 / pace.links[size_t(program.kinds[size_t(p.group)])]);
      if (p.kind == PieceKind::send)
        time = scaled(time, 1 / (program.tape.streams[size_t(p.stream)] == "pp on" ? pace.on : pace.back));
    }
    return it->second;
  }

  const World& w_;
  const Mesh& mesh_;
  std::shared_ptr<WorldReplay::Owned> owned_;
  std::vector<Division> divisions_;                             // in the order of the programs' groups
  std::vector<int> pp_;                                         // by rank: its place in the pipeline,
  std::vector<std::shared_ptr<const std::vector<int>>> lines_;  // and the ranks of it
  std::vector<RankPace> paces_;
  std::vector<int> color_;
  std::vector<int> given_;
};

}  // namespace

WorldReplay replay_world(const World& w, bool all_ranks) {
  return WorldBuilder(w).run(all_ranks);
}

}  // namespace trireme
