// Lists of numbers of which each is kept once: lists are equal if their addresses are.
#pragma once
#include <cstdint>
#include <vector>

namespace trireme {

using NumberList = std::vector<int64_t>;
// Returns the one list with these numbers, valid until the program ends; null for an empty one. Thread-safe.
const NumberList* interned(const NumberList&);

}  // namespace trireme
