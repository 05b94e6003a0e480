#include "sim/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "sim/shared_links.h"

namespace trireme {
namespace {

// One coming together of a group's ranks.
struct Meeting {
  struct Member {
    size_t rank, lane, piece;
  };
  std::vector<Member> came;
  int64_t met = 0;
};
struct Group {
  size_t members = 0;  // of the ranks given
  std::deque<Meeting> open;
  int64_t over = 0;  // meetings before the first of `open`
};

// A stream of a rank: what was issued on it, and how much of that is done. Compute is lane 0.
struct Lane {
  std::vector<size_t> issued;  // pieces
  std::vector<int64_t> ready;  // when the rank's thread issued each
  size_t done = 0;
  int64_t free = 0;
  // The next piece is a call that has come, or a send that has begun; and its end is known.
  bool came = false, met = false;
};
// On links that others may be on: a call's ranks, or a send's one.
struct Transfer {
  std::vector<Meeting::Member> members;
  int64_t met = 0;  // when it began
};
struct Rank {
  size_t at = 0;       // the next piece of the program
  bool begun = false;  // the thread has done what comes before it
  std::vector<Lane> lanes;
  std::vector<size_t> groups;   // of the tape's groups: which of the replay's
  std::vector<int64_t> number;  // of each piece that is a call: of its group's calls, in program order
  bool awake = false;
};

// Every piece waits for earlier pieces of its rank, or for peers: so ranks run as far as they can, and are
// woken by what they wait for. Times are maxima and sums of what is known, whatever the order of waking.
class Engine {
 public:
  explicit Engine(std::span<const RankTape> ranks)
      : ranks_(ranks), state_(ranks.size()), links_(ranks.size() * kLinks) {
    out_.ranks.resize(ranks.size());
    for (size_t r = 0; r < ranks.size(); r++) enter(r);
  }

  // What is not known yet when no rank can go on comes behind the end of some transfer, so the one that ends
  // next will share its links with none but those that are known.
  Replay run() {
    for (size_t r = ranks_.size(); r-- > 0;) wake(r);
    go_on();
    while (const std::optional<SharedLinks::End> e = links_.next()) end_transfer(e->transfer, e->at), go_on();
    if (!fails_) refuse_standstill();
    for (size_t r = 0; r < ranks_.size(); r++) finish(r);
    return std::move(out_);
  }

 private:
  const std::vector<Piece>& pieces(size_t r) const { return ranks_[r].tape->pieces; }
  PieceTime& time(size_t r, size_t i) { return out_.ranks[r].pieces[i]; }
  int peer(size_t r, const Piece& p) const {
    return ranks_[r].place ? ranks_[r].place->peers.at(size_t(p.peer)) : p.peer;
  }

  void enter(size_t r) {
    const RankTape& t = ranks_[r];
    require(t.tape && t.prices.size() == t.tape->pieces.size(), "a replay has a price for each piece");
    require(index_of_.emplace(t.rank, r).second, "a replay has each rank once");
    Rank& s = state_[r];
    s.lanes.resize(t.tape->streams.size());
    fails_ |= t.fails != std::numeric_limits<int64_t>::max();
    if (t.place) require(t.place->groups.size() == t.tape->groups.size(), "a place has the tape's groups");
    for (size_t i = 0; t.place && i < t.place->groups.size(); i++) {
      auto [it, fresh] = numbered_.try_emplace(t.place->groups[i], groups_.size());
      if (fresh) groups_.emplace_back();
      groups_[it->second].members++;
      s.groups.push_back(it->second);
    }
    for (const TapeGroup& g : t.tape->groups) {
      if (t.place) break;
      require(std::find(g.ranks.begin(), g.ranks.end(), t.rank) != g.ranks.end(),
              "a rank calls in groups that it is in");
      auto [it, fresh] = group_of_.try_emplace({g.name, g.ranks}, groups_.size());
      if (fresh) groups_.emplace_back();
      groups_[it->second].members++;
      s.groups.push_back(it->second);
    }
    std::vector<int64_t> calls(s.groups.size());
    s.number.resize(pieces(r).size());
    for (size_t i = 0; i < pieces(r).size(); i++)
      if (pieces(r)[i].kind == PieceKind::call) s.number[i] = calls.at(size_t(pieces(r)[i].group))++;
    out_.ranks[r].pieces.resize(pieces(r).size());
  }

  void go_on() {
    while (!awake_.empty()) {
      // The last one first: ranks that meet often go on together, while they are in the cache.
      const size_t r = awake_.back();
      awake_.pop_back();
      state_[r].awake = false;
      while (advance(r)) {
      }
    }
  }

  void wake(size_t r) {
    if (state_[r].awake) return;
    state_[r].awake = true;
    awake_.push_back(r);
  }

  bool advance(size_t r) {
    bool moved = false;
    Rank& s = state_[r];
    for (size_t l = 1; l < s.lanes.size(); l++)
      while (step_lane(r, l)) moved = true;
    while (step_thread(r)) moved = true;
    return moved;
  }

  // The rank's thread: pieces of its own, and the issue of others'.
  bool step_thread(size_t r) {
    Rank& s = state_[r];
    if (s.at == pieces(r).size()) return false;
    const Piece& p = pieces(r)[s.at];
    require(p.stream >= 0 && size_t(p.stream) < s.lanes.size(), "a piece is on a stream that its tape names");
    Lane& thread = s.lanes[0];
    if (!s.begun) {
      const int64_t before = ranks_[r].prices[s.at].before;
      thread.free += before;
      out_.ranks[r].busy += before;
      s.begun = true;
    }
    if (p.stream != 0) {
      s.lanes[size_t(p.stream)].issued.push_back(s.at);
      s.lanes[size_t(p.stream)].ready.push_back(thread.free);
    } else if (!execute(r, 0, s.at, thread.free)) {
      return false;
    }
    s.at++, s.begun = false;
    return true;
  }

  bool step_lane(size_t r, size_t l) {
    Lane& lane = state_[r].lanes[l];
    if (lane.done == lane.issued.size()) return false;
    if (!execute(r, l, lane.issued[lane.done], std::max(lane.free, lane.ready[lane.done]))) return false;
    lane.done++;
    return true;
  }

  // The next piece of a lane: true when all that it needs is known, and so its times.
  bool execute(size_t r, size_t l, size_t i, int64_t begin) {
    if (begin >= ranks_[r].fails) return false;
    const Piece& p = pieces(r)[i];
    const int64_t price = ranks_[r].prices[i].time;
    switch (p.kind) {
      case PieceKind::op:
        return settle(r, l, i, {begin, begin, begin + price});
      case PieceKind::send:
        if (shares_links(r) && price > 0) return send_over_links(r, l, i, begin);
        settle(r, l, i, {begin, begin, begin + price});
        return deliver(r, p, begin + price);
      case PieceKind::call:
        return call(r, l, i, begin);
      case PieceKind::recv: {
        auto it = messages_.find({peer(r, p), ranks_[r].rank, p.mark});
        if (it == messages_.end()) return false;
        const Message m = it->second;
        messages_.erase(it);
        return settle(r, l, i, {begin, std::max(begin, m.sent), std::max(begin, m.there)});
      }
      case PieceKind::wait: {
        const int64_t until = end_of(r, p);
        return until >= 0 && settle(r, l, i, {begin, begin, std::max(begin, until)});
      }
    }
    return false;
  }

  bool settle(size_t r, size_t l, size_t i, const PieceTime& t) {
    time(r, i) = t;
    state_[r].lanes[l].free = t.end;
    return true;
  }

  // When what was issued before a wait's mark is done; -1: not known yet. Of compute all is: its thread
  // waits.
  int64_t end_of(size_t r, const Piece& p) {
    if (p.on <= 0 || p.mark == 0) return 0;
    const Lane& lane = state_[r].lanes.at(size_t(p.on));
    if (int64_t(lane.done) < p.mark) return -1;
    return time(r, lane.issued[size_t(p.mark) - 1]).end;
  }

  bool deliver(size_t r, const Piece& p, int64_t there) {
    const int from = ranks_[r].rank, to = peer(r, p);
    const PieceTime& t = time(r, size_t(&p - pieces(r).data()));
    if (!messages_.emplace(std::array<int64_t, 3>{from, to, p.mark}, Message{t.begin, there}).second)
      run_failed("replay: rank {} sends message {} to rank {} twice", from, p.mark, to);
    if (auto it = index_of_.find(to); it != index_of_.end()) wake(it->second);
    return true;
  }

  bool call(size_t r, size_t l, size_t i, int64_t begin) {
    Lane& lane = state_[r].lanes[l];
    if (!lane.came) come(r, l, i, begin);
    if (!lane.met) return false;
    lane.came = lane.met = false;
    return true;
  }

  void come(size_t r, size_t l, size_t i, int64_t begin) {
    Rank& s = state_[r];
    Group& g = groups_[s.groups[size_t(pieces(r)[i].group)]];
    const int64_t number = s.number[i];
    while (number - g.over >= int64_t(g.open.size())) g.open.emplace_back();
    Meeting& m = g.open[size_t(number - g.over)];
    if (!m.came.empty()) agree(m.came.front(), r, i, number);
    m.came.push_back({r, l, i});
    m.met = std::max(m.met, begin);
    time(r, i).begin = begin;
    s.lanes[l].came = true;
    if (m.came.size() < g.members || never_meets(m)) return;
    if (shares_links(r) && alone(m.came) > 0) {
      call_over_links(m);
    } else {
      for (const Meeting::Member& who : m.came) {
        end_call(who, m.met, m.met + ranks_[who.rank].prices[who.piece].time);
        if (who.rank != r) wake(who.rank);
      }
    }
    while (!g.open.empty() && g.open.front().came.size() == g.members) g.open.pop_front(), g.over++;
  }
  void end_call(const Meeting::Member& who, int64_t met, int64_t end) {
    settle(who.rank, who.lane, who.piece, {time(who.rank, who.piece).begin, met, end});
    state_[who.rank].lanes[who.lane].met = true;
  }

  // ---- links that transfers share ----

  static constexpr size_t kLinks = 4;  // of a rank: to the node's and to others, from and to it
  bool shares_links(size_t r) const { return ranks_[r].place && !ranks_[r].place->peer_links.empty(); }
  static uint32_t link(size_t r, RankLink where, bool receives) {
    return uint32_t(r * kLinks + size_t(where) * 2 + receives);
  }
  // What a transfer takes by itself: of ranks with different prices the longest.
  int64_t alone(const std::vector<Meeting::Member>& members) const {
    int64_t most = 0;
    for (const Meeting::Member& who : members) most = std::max(most, ranks_[who.rank].prices[who.piece].time);
    return most;
  }

  void call_over_links(const Meeting& m) {
    std::vector<uint32_t> links;
    for (const Meeting::Member& who : m.came) {
      const RankLink where =
          ranks_[who.rank].place->group_links.at(size_t(pieces(who.rank)[who.piece].group));
      links.push_back(link(who.rank, where, false)), links.push_back(link(who.rank, where, true));
    }
    start(m.came, m.met, std::move(links));
  }
  // True once it has ended.
  bool send_over_links(size_t r, size_t l, size_t i, int64_t begin) {
    Lane& lane = state_[r].lanes[l];
    if (!lane.came) {
      const Piece& p = pieces(r)[i];
      const RankLink where = ranks_[r].place->peer_links.at(size_t(p.peer));
      std::vector<uint32_t> links = {link(r, where, false)};
      if (auto it = index_of_.find(peer(r, p)); it != index_of_.end())
        links.push_back(link(it->second, where, true));
      lane.came = true;
      start({{r, l, i}}, begin, std::move(links));
    }
    if (!lane.met) return false;
    lane.came = lane.met = false;
    return true;
  }
  void start(std::vector<Meeting::Member> members, int64_t met, std::vector<uint32_t> links) {
    links_.begin(met, alone(members), std::move(links));
    transfers_.push_back({std::move(members), met});
  }
  void end_transfer(size_t number, int64_t end) {
    const Transfer t = std::move(transfers_[number]);
    for (const Meeting::Member& who : t.members) {
      const Piece& p = pieces(who.rank)[who.piece];
      if (p.kind == PieceKind::send) time(who.rank, who.piece).begin = t.met;
      end_call(who, t.met, end);
      if (p.kind == PieceKind::send) deliver(who.rank, p, end);
      wake(who.rank);
    }
  }

  bool never_meets(const Meeting& m) const {
    return fails_ && std::any_of(m.came.begin(), m.came.end(),
                                 [&](const Meeting::Member& who) { return ranks_[who.rank].fails <= m.met; });
  }

  // Ranks send all_to_all as many rows as they have.
  void agree(const Meeting::Member& first, size_t r, size_t i, int64_t number) const {
    const Piece &a = pieces(first.rank)[first.piece], &b = pieces(r)[i];
    if (a.name != b.name || (a.payload != b.payload && a.name != "all_to_all"))
      run_failed("replay: rank {} calls {} of {} bytes as call {} of its group, rank {} {} of {} bytes",
                 ranks_[first.rank].rank, a.name, a.payload, number, ranks_[r].rank, b.name, b.payload);
  }

  void refuse_standstill() const {
    std::string who;
    for (size_t r = 0; r < ranks_.size(); r++)
      for (size_t l = 0; l < state_[r].lanes.size(); l++) {
        const Lane& lane = state_[r].lanes[l];
        const bool all = l == 0 ? state_[r].at == pieces(r).size() : lane.done == lane.issued.size();
        if (all) continue;
        const size_t i = l == 0 ? state_[r].at : lane.issued[lane.done];
        who += fmt::format("{}rank {} at piece {} ({})", who.empty() ? "" : ", ", ranks_[r].rank, i,
                           pieces(r)[i].name);
        break;
      }
    if (!who.empty()) run_failed("replay: the step stands still: {} wait for what never comes", who);
  }

  void finish(size_t r) {
    RankReplay& out = out_.ranks[r];
    for (const Lane& lane : state_[r].lanes) out.end = std::max(out.end, lane.free);
    for (size_t i = 0; i < pieces(r).size(); i++) {
      const Piece& p = pieces(r)[i];
      const int64_t price = ranks_[r].prices[i].time;
      if (out.pieces[i].end < 0) continue;
      if (p.kind == PieceKind::op && p.stream == 0) out.busy += price;
      if (p.kind == PieceKind::call || p.kind == PieceKind::send) out.comm += price;
      if (of_disk(p)) out.disk += price;
      if (of_host(p)) out.host += price;
    }
    for (const Exposure& e : exposures(ranks_[r], out)) {
      if (const Piece& p = pieces(r)[e.held_by]; of_offload(p)) {
        (of_disk(p) ? out.exposed_disk : out.exposed_host) += e.time;
        continue;
      }
      out.exposed += e.time;
      out.late += late(r, e);
    }
    out_.makespan = std::max(out_.makespan, out.end);
  }

  // Of a wait, how long calls and messages before it on that lane had not met.
  int64_t late(size_t r, const Exposure& e) {
    const Piece& p = pieces(r)[e.at];
    const PieceTime& t = time(r, e.at);
    if (p.kind != PieceKind::wait) return t.met - t.begin;
    const Lane& lane = state_[r].lanes[size_t(p.on)];
    int64_t sum = 0;
    for (size_t k = size_t(p.mark); k-- > 0;) {
      const PieceTime& behind = time(r, lane.issued[k]);
      if (behind.end <= t.begin) break;
      sum += std::max<int64_t>(0, std::min(behind.met, t.end) - std::max(behind.begin, t.begin));
    }
    return sum;
  }

  struct Message {
    int64_t sent = 0, there = 0;
  };
  struct HashKey {
    size_t operator()(const std::array<int64_t, 3>& k) const {
      return size_t(uint64_t(k[0]) * 0x9e3779b97f4a7c15u ^ uint64_t(k[1]) * 0xc2b2ae3d27d4eb4fu ^
                    uint64_t(k[2]) * 0x165667b19e3779f9u);
    }
  };

  std::span<const RankTape> ranks_;
  std::vector<Rank> state_;
  std::vector<Group> groups_;
  std::map<std::pair<std::string, std::vector<int>>, size_t> group_of_;
  std::unordered_map<int64_t, size_t> numbered_;                           // groups of places
  bool fails_ = false;                                                     // some rank does
  std::unordered_map<int, size_t> index_of_;                               // by rank of the world
  std::unordered_map<std::array<int64_t, 3>, Message, HashKey> messages_;  // by sender, receiver, number
  std::vector<size_t> awake_;
  SharedLinks links_;
  std::vector<Transfer> transfers_;  // by their numbers in links_
  Replay out_;
};

}  // namespace

Replay replay(std::span<const RankTape> ranks) {
  return Engine(ranks).run();
}

std::vector<Exposure> exposures(const RankTape& rank, const RankReplay& r) {
  std::vector<std::vector<size_t>> issued(rank.tape->streams.size());
  std::vector<Exposure> list;
  for (size_t i = 0; i < rank.tape->pieces.size(); i++) {
    const Piece& p = rank.tape->pieces[i];
    issued[size_t(p.stream)].push_back(i);
    const int64_t stood = r.pieces[i].end - r.pieces[i].begin;
    if (p.stream != 0 || p.kind == PieceKind::op || stood == 0 || r.pieces[i].end < 0) continue;
    size_t by = i;
    if (p.kind == PieceKind::wait) by = issued[size_t(p.on)].at(size_t(p.mark) - 1);
    list.push_back({i, by, stood});
  }
  return list;
}

}  // namespace trireme
