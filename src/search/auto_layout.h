// layout = "auto", batch.micro = "auto": the best of the search's layouts on this machine's ranks, each
// confirmed by the real step on meta (forecast/forecast.h), its bytes exact and its time replayed.
#pragma once
#include <string>
#include <vector>

#include "forecast/forecast.h"
#include "search/requirement.h"

namespace trireme {

struct AutoWish {
  bool layout = false;               // all of [layout] and batch.micro
  bool micro = false;                // batch.micro alone
  int64_t ranks = 1;                 // that the layout divides the run over
  std::vector<Requirement> require;  // conditions on the layout
  bool any() const { return layout || micro; }
};

struct TriedLayout {
  RunSpec run;    // resolved
  RunSpec asked;  // the same before resolve()
  std::string text;
  double step_s = 0;  // 0: the machine's peaks are not known
  double roof_s = 0;
  bool expected = false;  // true: by measured kernels; else the step is the bound
  int64_t bytes = 0;      // a rank's memory
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
// The choice on one screen, in the form of a search's answer (search/search.h). all: every booked layout.
std::string answer_text(const AutoChoice&, const ClusterSpec&, bool all);

}  // namespace trireme
