// What routers can make of all_to_all where ranks divide the experts. Forecasts take rows as balanced; a run
// moves what its choices say.
#pragma once
#include <optional>

#include "runtime/booking.h"

namespace trireme {

// Bytes of all_to_all in a step, of the rank with most of it: no choice of experts is outside.
struct RoutedBytes {
  int64_t least = 0, most = 0;
  bool operator==(const RoutedBytes&) const = default;
};
// None where no expert is divided. MostWire: of ranks as booked.
std::optional<RoutedBytes> routed_bytes(const RunSpec&, const Schedule&, const MostWire&);

}  // namespace trireme
