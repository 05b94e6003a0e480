// Offsets between the clocks of ranks, from the moments when their collectives met.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "mesh/mesh.h"
#include "trace/span.h"

namespace trireme {

// The transfers of one rank in one step, in program order per group.
struct RankCalls {
  int rank = 0;
  std::vector<Span> calls;  // comm spans
};

// Ranks of the group of `rank` that is called `name` ("tp", "dp+cp", "pp again"); empty: not a whole group of
// axes of the mesh.
std::vector<int> ranks_of_group(const Mesh&, int rank, std::string_view name);
// The pp coordinate that a message of the pipeline comes from or goes to, by its lane ("pp forward from 0");
// -1: neither.
int sender_of(std::string_view lane);
int receiver_of(std::string_view lane);

// Returns what to subtract from each rank's times, by index of `ranks`; 0 for the first rank, and for ranks
// whose clocks can be the same.
//
// No rank leaves a collective before its last rank has entered it, and no message arrives before it was sent.
// Each such pair bounds the difference of two clocks from one side; with bounds from both sides the middle is
// taken, from one side the bound itself. Ranks without any transfer to the others keep 0.
std::vector<int64_t> clock_offsets(const Mesh&, std::span<const RankCalls> ranks);

}  // namespace trireme
