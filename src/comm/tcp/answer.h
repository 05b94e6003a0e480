// What the ranks of a group get of a collective of host memory, once all have sent their parts.
#pragma once
#include <vector>

#include "comm/tcp/frames.h"

namespace trireme::tcp {

// parts: by place in the group. Results by place: all_reduce, reduce: buf; all_gather: full; reduce_scatter:
// shard; all_to_all: recv; broadcast: buf; empty where a rank gets nothing. Sums in rank order, as every
// ordered one. Calls that do not fit together are an Error, in the words of the other backends; ranks: in the
// world, for it.
std::vector<std::vector<std::byte>> answer(std::vector<Call>& parts, std::string_view group,
                                           std::span<const int> ranks);

}  // namespace trireme::tcp
