// How fast the processor that runs this thread is clocked now.
#pragma once

namespace trireme {

// Times short chains of dependent multiplications and returns multiplications per nanosecond of the fastest
// chain: proportional to the clock, whatever caches and memory do. Takes about 0.3 ms. Compare only values of
// one machine.
double clock_burst();

}  // namespace trireme
