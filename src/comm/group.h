// What every way to make a group of ranks asks first.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme {

// Where `rank` stands among a group's ranks, which ascend within the world and have it among them; an error
// of the program's where they do not.
int place_in_group(std::span<const int> ranks, int rank, int world);

// The same number on all ranks that make the nth group of this name and these ranks, and on no others.
uint64_t group_key(std::span<const int> ranks, std::string_view name, uint64_t nth);

}  // namespace trireme
