// Which choices a capacity drops where its units lie on several ranks (docs/moe.md).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "mesh/context.h"

namespace trireme {

// A microbatch's units of `unit` tokens; an expert takes the first `capacity` choices of each.
struct CapacityUnits {
  int64_t experts, choices;  // choices: of a token
  int64_t unit, capacity;
  int64_t seq;         // tokens of a whole sequence
  ContextPlace ranks;  // where its positions lie
  // Choices of each expert by tokens of the unit that come before these and are not here; none: no such.
  std::vector<int64_t> before = {};
};

// ids: the choices of all ranks' tokens, rank behind rank, [ranks, sequences * seq / ranks, choices]. Those
// that are dropped become -1 - id (RouteOrderArgs): of a unit's tokens in order those that come behind the
// first, as one rank that had all of them would drop them.
void mark_dropped(std::span<int32_t> ids, const CapacityUnits&);

}  // namespace trireme
