#include "sim/shared_links.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

int64_t SharedLinks::Transfer::rate() const {
  for (size_t n = kMost; n > 1; n--)
    if (shared[n] > 0) return kParts / int64_t(n);
  return kParts;
}

size_t SharedLinks::begin(int64_t at, int64_t work, std::vector<uint32_t> links) {
  require(work > 0 && work <= kMostWork && !links.empty(), "a transfer has work and links");
  all_.push_back({.links = std::move(links), .left = work * kParts});
  begins_.push({at, all_.size() - 1, 0});
  return all_.size() - 1;
}

std::optional<SharedLinks::End> SharedLinks::next() {
  while (true) {
    while (!ends_.empty() && ends_.top().changes != all_[ends_.top().transfer].changes) ends_.pop();
    if (begins_.empty() && ends_.empty()) return {};
    if (ends_.empty() || (!begins_.empty() && begins_.top().at <= ends_.top().at)) {
      const Event e = begins_.top();
      begins_.pop();
      enter(e.transfer, e.at);
      continue;
    }
    const Event e = ends_.top();
    ends_.pop();
    leave(e.transfer, e.at);
    return End{e.transfer, e.at};
  }
}

void SharedLinks::enter(size_t transfer, int64_t now) {
  Transfer& t = all_[transfer];
  t.since = now;
  for (const uint32_t link : t.links) {
    const size_t before = on_[link].size();
    require(before < kMost, "a link has few transfers at once");
    recount(link, before, before + 1, now);
    on_[link].push_back(transfer);
    t.shared[before + 1]++;
  }
  set_end(transfer, now);
}

void SharedLinks::leave(size_t transfer, int64_t now) {
  Transfer& t = all_[transfer];
  for (const uint32_t link : t.links) {
    const size_t before = on_[link].size();
    std::erase(on_[link], transfer);
    recount(link, before, before - 1, now);
  }
  t.changes++;
  t.links = {};
}

void SharedLinks::recount(uint32_t link, size_t before, size_t after, int64_t now) {
  for (const size_t other : on_[link]) {
    settle(all_[other], now);
    all_[other].shared[before]--, all_[other].shared[after]++;
    set_end(other, now);
  }
}

void SharedLinks::settle(Transfer& t, int64_t now) {
  t.left = std::max<int64_t>(0, t.left - (now - t.since) * t.rate());
  t.since = now;
}

void SharedLinks::set_end(size_t transfer, int64_t now) {
  Transfer& t = all_[transfer];
  const int64_t rate = t.rate();
  ends_.push({now + (t.left + rate - 1) / rate, transfer, ++t.changes});
}

}  // namespace trireme
