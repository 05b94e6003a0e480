// Seconds of an operation from what it does and what the device can (Williams et al. 2009).
#pragma once
#include "trace/ledger.h"

namespace trireme {

struct Roof {
  double flops_per_s = 0;  // peak of the operation's dtype
  double bytes_per_s = 0;  // to and from memory
};

// The longer of computing and moving, each at its peak: no operation can be faster.
double roofline_seconds(const Cost&, const Roof&);
// FLOPs per byte moved; 0 for an operation that does nothing.
double intensity(const Cost&);
// Intensity at which computing takes as long as moving: below it memory binds.
double ridge(const Roof&);

}  // namespace trireme
