#include "comm/group.h"

#include "base/error.h"
#include "base/file.h"

namespace trireme {

int place_in_group(std::span<const int> ranks, int rank, int world) {
  int place = -1;
  for (size_t i = 0; i < ranks.size(); i++) {
    require(ranks[i] >= 0 && ranks[i] < world && (i == 0 || ranks[i - 1] < ranks[i]),
            "a group's ranks ascend within the world");
    if (ranks[i] == rank) place = int(i);
  }
  require(place >= 0, "a rank makes groups that it is in");
  return place;
}

uint64_t group_key(std::span<const int> ranks, std::string_view name, uint64_t nth) {
  return hash64(ranks.data(), ranks.size_bytes(), hash64(name.data(), name.size(), nth));
}

}  // namespace trireme
