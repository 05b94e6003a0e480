// Who has what of a schedule, also where stages have copies.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "schedule/schedule.h"

namespace trireme {

class Holders {
 public:
  explicit Holders(const Schedule&);
  // Where a microbatch is in a stage.
  int rank_of(int stage, int mb) const;
  size_t stages() const { return ranks_.size(); }
  const std::vector<int>& stages_of(int rank) const { return stages_.at(size_t(rank)); }  // ascending
  // Ranks that have the stage, and those that have the same stages as this one, itself among them; ascending.
  const std::vector<int>& ranks_of(int stage) const { return ranks_.at(size_t(stage)); }
  std::vector<int> alike(int rank) const;

 private:
  std::vector<std::vector<int>> ranks_, stages_;  // by stage; by rank
  std::unordered_map<uint32_t, int> of_copy_;     // by stage and microbatch, where stages have copies
};

}  // namespace trireme
