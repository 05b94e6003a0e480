#include "schedule/holders.h"

namespace trireme {
namespace {

uint32_t place_of(int stage, int mb) {
  return uint32_t(stage) << 16 | uint32_t(mb);
}

}  // namespace

Holders::Holders(const Schedule& s) : ranks_(holders_of(s)), stages_(s.ranks.size()) {
  for (size_t stage = 0; stage < ranks_.size(); stage++)
    for (int r : ranks_[stage]) stages_[size_t(r)].push_back(int(stage));
  for (size_t r = 0; s.copies > 1 && r < s.ranks.size(); r++)
    for (const Action& a : s.ranks[r])
      if (a.kind == Act::F) of_copy_[place_of(a.stage, a.mb)] = int(r);
}

int Holders::rank_of(int stage, int mb) const {
  return of_copy_.empty() ? ranks_.at(size_t(stage)).front() : of_copy_.at(place_of(stage, mb));
}

std::vector<int> Holders::alike(int rank) const {
  std::vector<int> out;
  for (size_t r = 0; r < stages_.size(); r++)
    if (stages_[r] == stages_of(rank)) out.push_back(int(r));
  return out;
}

}  // namespace trireme
