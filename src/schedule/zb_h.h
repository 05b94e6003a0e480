// The two hand-made zero-bubble schedules differ in how far ranks run ahead.
#pragma once
#include "schedule/schedule.h"

namespace trireme {

// 1F1B with the backward split: rank r runs ahead * (p-1-r) forwards before its first I, and its weight
// gradients lag ahead * r behind, so that all ranks have equally many microbatches between F and W.
Schedule split_one_f_one_b(int pp, int microbatches, int ahead);

}  // namespace trireme
