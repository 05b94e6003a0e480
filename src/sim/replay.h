// Discrete events over the tapes of one step: when each piece of each rank begins and ends, given what it
// costs. Integers throughout (nanoseconds, or any unit): equal inputs give equal timelines, to the bit.
//
// A stream does its pieces in order, one at a time. Compute is the rank's own thread and issues the others'
// pieces as it comes to them. A call begins on a rank when its stream comes to it, meets when the last rank
// of its group has come, and ends on each rank that rank's price later. A message is there when its send
// ends.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "trace/span.h"
#include "trace/tape.h"

namespace trireme {

// before: work of the rank's thread until it issues the piece. time: of an op, of a call from when its ranks
// have met, of a send until the message is there; nothing of a wait or recv.
struct Price {
  int64_t before = 0, time = 0;
};

// What a rank sends and receives over: links of its own to those of its node and to all others, both ways at
// once.
enum class RankLink : uint8_t { node, network };

// Where a rank stands whose tape is others' too: what stands in the place of the tape's groups and peers.
struct RankPlace {
  std::vector<int64_t> groups;  // by the tape's groups: equal numbers are one group
  std::vector<int> peers;       // by Piece::peer: the rank of the world
  // Which link calls of these groups and messages to these peers go over, if transfers share links
  // (sim/shared_links.h); empty: each goes as if it were alone.
  std::vector<RankLink> group_links, peer_links;
};

// All outlive the replay; one price a piece. Ranks that do the same may share them.
struct RankTape {
  int rank = 0;  // of the world
  const Tape* tape = nullptr;
  std::span<const Price> prices;
  const RankPlace* place = nullptr;                     // none: as the tape says
  int64_t fails = std::numeric_limits<int64_t>::max();  // the rank begins nothing at or after this time
};

// begin < 0: never, for a rank has failed.
struct PieceTime {
  int64_t begin = -1, met = -1, end = -1;
};

struct RankReplay {
  std::vector<PieceTime> pieces;  // as the tape's
  int64_t end = 0;                // of all its streams
  int64_t busy = 0;               // of compute: ops, and what the thread does between pieces
  // Time in which compute stands still for other ranks or for the wire: at waits, at recvs, and in calls and
  // sends of its own. late: of this, waiting for ranks that have not come or not yet sent.
  int64_t exposed = 0, late = 0;
  int64_t disk = 0, exposed_disk = 0;  // prices of disk transfers; what compute stands still for them
  int64_t host = 0, exposed_host = 0;  // likewise: of transfers to and from the host's memory
  int64_t comm = 0;  // of all calls and sends, their prices: what compute would stand still without overlap
};

struct Replay {
  std::vector<RankReplay> ranks;  // as given
  int64_t makespan = 0;
};

// Ranks of a group that are not given come with those that are: where all replicas do the same, one stands
// for all. Calls of a group meet in the order of each rank's program. Errors: tapes that disagree about a
// call, and ranks that wait for one another for ever, by rank and piece; where a rank fails, those that wait
// for it, or for ranks that do, stand still from then on.
Replay replay(std::span<const RankTape>);

// The timeline as spans, each lane in order: ops; calls, sends and recvs; and compute's waits, named after
// what they waited for.
std::vector<Span> spans_of(std::span<const RankTape>, const Replay&, int64_t step = 1);

// A piece of compute that stood still: at piece `at` of the tape, for piece `held_by` (of offloading, or what
// RankReplay::exposed is about).
struct Exposure {
  size_t at = 0, held_by = 0;
  int64_t time = 0;
};
// In the order of the program, without those of no time; `time` adds up to RankReplay::exposed and
// exposed_disk and exposed_host.
std::vector<Exposure> exposures(const RankTape&, const RankReplay&);

}  // namespace trireme
