// Where a rank must know that the step before was right (optimizer post-validation; Qi et al. 2024, arXiv
// 2401.10241, section 4).
#pragma once
#include "schedule/schedule.h"

namespace trireme {

struct SettlePoint {
  int action = 0;              // the rank's first that goes beyond what can be dropped; their number if none
  std::vector<Action> unread;  // receives that meet messages sent to it before, in the order of its list
};

// By rank, of a schedule with its messages: before its first backward pass, or before the first message that
// comes from beyond another rank's point. Every rank reaches its own in whatever order ranks come to run,
// nobody beyond theirs; a first backward pass has waited for every stage's forward pass, so to know by then
// what every rank said at the end of the step before costs no waiting.
std::vector<SettlePoint> settle_points(const Schedule&);

}  // namespace trireme
