// layout = "auto", batch.micro = "auto": the best of the search's layouts on this machine's ranks, each
// confirmed by the real step on meta (plan/forecast.h), its bytes exact and its time replayed.
#pragma once
#include <string>
#include <vector>

#include "plan/forecast.h"

namespace trireme {

struct AutoWish {
  bool layout = false;  // all of [layout] and batch.micro
  bool micro = false;   // batch.micro alone
  int64_t ranks = 1;    // that the layout divides the run over
  bool any() const { return layout || micro; }
};

struct TriedLayout {
  RunSpec run;  // resolved
  std::string text;
  double step_s = 0;  // 0: the machine's peaks are not known
  int64_t bytes = 0;  // of a rank's memory
  bool fits = false;
};
struct AutoChoice {
  std::vector<TriedLayout> tried;  // as the closed forms rank them
  size_t best = 0;
  double seconds = 0;  // that it took
};

// The run is valid and not resolved; its layout is one rank's where wish.layout. What closed forms find best
// and leanest is booked; of what fits the fastest is taken. Errors (request): nothing fits.
AutoChoice choose_layout(const RunSpec&, const AutoWish&, const ClusterSpec&, int threads, const Facts&);

std::string to_text(const AutoChoice&);

}  // namespace trireme
