#include "comm/watch/pulse.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "base/file.h"

namespace trireme {

Pulse::Pulse(int rank) : rank_(rank) {
  mine_.action.set("start"), mine_.quiet = 1;
  show(0, kWords);
}

void Pulse::show(size_t first, size_t last) {
  shown_.begin();
  for (size_t i = first; i < last; i++) {
    uint64_t word;
    std::memcpy(&word, reinterpret_cast<const std::byte*>(&mine_) + 8 * i, 8);
    shown_.put(i, word);
  }
  shown_.end();
}

// A rank that is held up inside of show() leaves a mixture of two positions behind: better than none.
Pulse::Position Pulse::position(bool& torn) const {
  VersionedWords<kWords>::Words words;
  torn = !shown_.read(words, 100);
  return std::bit_cast<Position>(words);
}

void Pulse::step(int64_t s) {
  mine_.step = s;
  show(0, 1);
}

void Pulse::action(std::string_view name, int64_t microbatch, bool quiet) {
  mine_.microbatch = microbatch, mine_.quiet = quiet;
  mine_.action.set(name), mine_.layer.set("");
  show(1, kWords);
}

void Pulse::layer(std::string_view name) {
  mine_.layer.set(name);
  show(offsetof(Position, layer) / 8, kWords);
}

size_t Pulse::join(std::string_view name, std::span<const int> ranks) {
  uint64_t key = hash64(ranks.data(), ranks.size_bytes(), hash64(name.data(), name.size()));
  uint64_t nth = 0;
  for (auto& [k, n] : made_)
    if (k == key) nth = ++n;
  if (nth == 0) made_.emplace_back(key, 0);
  const size_t at = joined_.load(std::memory_order_relaxed);
  if (at == kMostWatchedGroups) return at;
  Group& g = groups_[at];
  key = hash64(&nth, sizeof nth, key);
  g.key = key ? key : 1, g.size = int32_t(ranks.size());
  g.name.set(name);
  joined_.store(at + 1, std::memory_order_release);
  return at;
}

void Pulse::issued(size_t group, Collective c) {
  if (group >= kMostWatchedGroups) return;
  Group& g = groups_[group];
  if (c == Collective::p2p) {
    g.messages_issued.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const int64_t n = g.issued.load(std::memory_order_relaxed);
  g.kinds[size_t(n) % kKinds].store(c, std::memory_order_relaxed);
  g.issued.store(n + 1, std::memory_order_release);
}

void Pulse::done(size_t group, Collective c) {
  if (group >= kMostWatchedGroups) return;
  Group& g = groups_[group];
  (c == Collective::p2p ? g.messages_done : g.done).fetch_add(1, std::memory_order_release);
}

// Of a group, done is read first: what is done was issued.
Beat Pulse::beat(int64_t number) const {
  Beat b;
  const Position p = position(b.torn);
  b.number = number, b.rank = rank_, b.failed = failed_.load(), b.left = left_.load();
  b.waits = waits_.load(std::memory_order_relaxed);
  b.step = p.step, b.microbatch = p.microbatch, b.quiet = p.quiet != 0;
  b.action = p.action, b.layer = p.layer;
  const size_t groups = joined_.load(std::memory_order_acquire);
  for (size_t i = 0; i < groups; i++) {
    const Group& g = groups_[i];
    WatchedGroup& out = b.groups[i];
    out.key = g.key, out.name = g.name, out.size = g.size;
    const int64_t messages = g.messages_done.load(std::memory_order_acquire);
    out.messages_open = g.messages_issued.load(std::memory_order_acquire) - messages;
    out.done = g.done.load(std::memory_order_acquire);
    out.issued = g.issued.load(std::memory_order_acquire);
    out.open = g.kinds[size_t(out.done) % kKinds].load(std::memory_order_relaxed);
    if (out.issued > 0) out.last = g.kinds[size_t(out.issued - 1) % kKinds].load(std::memory_order_relaxed);
  }
  return b;
}

}  // namespace trireme
