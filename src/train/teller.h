#pragma once
#include "runtime/stage_runner.h"

namespace trireme {

// The rank that reports the losses of a replica, or of its part of the sequences: it has the last layers.
int teller_of(const StageRunner&, int replica, int part);

}  // namespace trireme
