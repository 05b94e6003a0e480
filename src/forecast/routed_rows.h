// What routers can make of all_to_all and of FLOPs where ranks divide the experts. Forecasts take rows as
// balanced; a run moves what its choices say, and computes as many rounds of it as the fullest rank's take.
#pragma once
#include <optional>

#include "runtime/booking.h"

namespace trireme {

// Bytes of all_to_all in a step, of one rank or of the rank with most of it: no choice of experts is outside.
struct RoutedBytes {
  int64_t least = 0, most = 0;
  bool operator==(const RoutedBytes&) const = default;
};
RoutedBytes routed_bytes(const RunSpec&, const Schedule&, const MostWire::Rows&);
// None where no expert is divided. MostWire: of ranks as booked.
std::optional<RoutedBytes> routed_bytes(const RunSpec&, const Schedule&, const MostWire&);

// FLOPs of a rank's step, as its kernels count them: products of a round are of as many rows as a rank has
// room for, so what is chosen makes rounds more or fewer, and nothing else.
struct RoutedFlops {
  double least = 0, most = 0;
  bool operator==(const RoutedFlops&) const = default;
};
// Of the rank that is booked; none where no expert is divided.
std::optional<RoutedFlops> routed_flops(const RunSpec&, const Schedule&, const Booking&);

}  // namespace trireme
