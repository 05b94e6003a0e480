// Bytes and time of a step for runs of so many actions that replaying each stage of each change would take
// minutes: the ranks that stand for all are booked (search/confirm.h), none is replayed against the others.
#pragma once
#include "forecast/forecast.h"

namespace trireme {

struct QuickForecast {
  int64_t bytes = 0;   // as Forecast::device_bytes(), to the byte
  double alone_s = 0;  // of the slowest booked rank: its step if messages came at once; 0 = no price
  double idle = 1;     // the step is so many times as long, for the pipeline's idle time (1F1B's, by chunks)
  int64_t booked = 0;  // ranks
  bool offload_priced = true, wire_priced = true;
  // A step of it, given what one of another quick forecast takes as replayed.
  double step_s(const QuickForecast& other, double replayed_s) const {
    return other.alone_s > 0 ? replayed_s * alone_s * idle / (other.alone_s * other.idle) : 0;
  }
};

// expected: by measured kernels, else at the roof, as the forecast that it is held against.
QuickForecast quick_forecast(const RunSpec&, const ClusterSpec&, int threads, bool expected);

}  // namespace trireme
