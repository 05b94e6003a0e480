// Links that several transfers use at once: each of n has an n-th of a link, and goes as fast as the slowest
// of its links lets it. What such a transfer leaves unused elsewhere is not given to others: a bound from
// below of what fair queues reach.
//
// A transfer is time: what it takes alone. In integers: of work, so that equal inputs give equal times, and
// ends are rounded up.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

namespace trireme {

class SharedLinks {
 public:
  explicit SharedLinks(size_t links) : on_(links) {}

  static constexpr int64_t kMostWork = 10'000'000'000'000'000;
  // Numbers count up from 0. at: not before the last end that next() has given. work: 1 to kMostWork; links:
  // each once.
  size_t begin(int64_t at, int64_t work, std::vector<uint32_t> links);

  struct End {
    size_t transfer = 0;
    int64_t at = 0;
  };
  // The transfer that ends next if no other one begins before that; nothing: none is under way.
  std::optional<End> next();

 private:
  // So many on one link at the most: work is kept in 840ths, for all of 1 to 8 divide 840.
  static constexpr size_t kMost = 8;
  static constexpr int64_t kParts = 840;
  struct Transfer {
    std::vector<uint32_t> links;
    int64_t left = 0, since = 0;               // parts of work, at that time
    std::array<uint32_t, kMost + 1> shared{};  // of [n]: links that it shares with n - 1 others
    uint32_t changes = 0;                      // of its end
    int64_t rate() const;                      // parts in a unit of time
  };
  struct Event {
    int64_t at = 0;
    size_t transfer = 0;
    uint32_t changes = 0;
    bool operator>(const Event& o) const {
      return at != o.at ? at > o.at : transfer != o.transfer ? transfer > o.transfer : changes > o.changes;
    }
  };
  using Events = std::priority_queue<Event, std::vector<Event>, std::greater<>>;

  void enter(size_t transfer, int64_t now);
  void leave(size_t transfer, int64_t now);
  // Those on a link, which shared it with so many and now share it with one more or less.
  void recount(uint32_t link, size_t before, size_t after, int64_t now);
  void settle(Transfer&, int64_t now);
  void set_end(size_t transfer, int64_t now);

  std::vector<Transfer> all_;
  std::vector<std::vector<size_t>> on_;  // by link: transfers under way
  Events begins_, ends_;
};

}  // namespace trireme
