// What a rank says of itself once a second: plain bytes of one size, so that they may be sent as they are.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "comm/communicator.h"

namespace trireme {

inline constexpr size_t kMostWatchedGroups = 16;  // of a rank; calls of further ones are not watched

// A short text inside a beat; longer ones lose their end.
template <size_t N>
struct BeatText {
  std::array<char, N> text{};  // padded with zeros
  void set(std::string_view s) {
    const size_t n = s.size() < N ? s.size() : N;
    for (size_t i = 0; i < N; i++) text[i] = i < n ? s[i] : '\0';
  }
  std::string_view get() const {
    size_t n = 0;
    while (n < N && text[n]) n++;
    return {text.data(), n};
  }
};

// A group as one of its ranks sees it. Collectives are numbered from 0 in the order of issue, the same on
// every rank; messages (p2p) are not among them.
struct WatchedGroup {
  uint64_t key = 0;  // the same on every rank of the group and no other's; 0 = no group
  BeatText<24> name;
  int32_t size = 0;                       // ranks
  Collective open = Collective::barrier;  // the oldest that is not done, if one is
  Collective last = Collective::barrier;  // the newest that was issued, if one was
  int64_t issued = 0, done = 0;           // collectives
  int64_t messages_open = 0;              // p2p batches issued and not done
};

struct Beat {
  int64_t number = 0;  // beats so far; 0: none yet
  int64_t waits = 0;   // reports that a call waits for peers, several per second while one does
  int64_t step = 0;    // from 1; 0: before the first
  int64_t microbatch = -1;
  BeatText<16> action;  // "F", "B", "norm", "update", "eval", "save", ...
  BeatText<48> layer;   // "blocks.3"; empty outside of layers
  int32_t rank = 0;
  bool quiet = false;   // in work that takes long by its nature, such as a save
  bool torn = false;    // the rank was held up while it said so: step, action and layer may be of two moments
  bool failed = false;  // it has an error, or heard of another rank's: everybody is to leave
  bool left = false;    // its work is over, in good order or not: it beats no more
  std::array<WatchedGroup, kMostWatchedGroups> groups;
};

}  // namespace trireme
