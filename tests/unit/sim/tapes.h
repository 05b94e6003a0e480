// Tapes written by hand, for tests of the replay.
#pragma once
#include "sim/replay.h"

namespace trireme::test {

// One rank: pieces in program order, each with its price. Stream 0 is compute.
struct Rank {
  explicit Rank(int id, std::vector<TapeGroup> groups = {}) : id(id) {
    tape.groups = std::move(groups);
    tape.streams = {"compute", "dp", "p2p"};
  }
  Rank& op(int64_t time, std::string_view name = "op", int stream = 0) {
    return put({.kind = PieceKind::op, .stream = stream}, time, name);
  }
  Rank& call(int stream, int64_t time, std::string_view name = "all_reduce", int group = 0) {
    return put({.kind = PieceKind::call, .stream = stream, .group = group}, time, name);
  }
  // For all that was issued on the stream so far.
  Rank& wait(int on, int stream = 0) {
    return put({.kind = PieceKind::wait, .stream = stream, .on = on, .mark = issued[size_t(on)]}, 0, "wait");
  }
  Rank& wait_until(int on, int64_t mark) {
    return put({.kind = PieceKind::wait, .on = on, .mark = mark}, 0, "wait");
  }
  Rank& send(int stream, int to, int64_t number, int64_t time) {
    return put({.kind = PieceKind::send, .stream = stream, .peer = to, .mark = number}, time, "send");
  }
  Rank& recv(int from, int64_t number) {
    return put({.kind = PieceKind::recv, .peer = from, .mark = number}, 0, "recv");
  }
  Rank& put(Piece p, int64_t time, std::string_view name) {
    issued[size_t(p.stream)]++;
    p.name = tape.keep(name);
    tape.pieces.push_back(p);
    prices.push_back({0, time});
    return *this;
  }
  RankTape view() const { return {id, &tape, prices}; }

  int id;
  Tape tape;
  std::vector<Price> prices;
  std::vector<int64_t> issued = std::vector<int64_t>(3);
};

template <class... R>
Replay replay_of(const R&... ranks) {
  const std::vector<RankTape> views = {ranks.view()...};
  return replay(views);
}

}  // namespace trireme::test
