// Forecast and measured, and named terms that add up to the difference.
#pragma once
#include <string>
#include <vector>

#include "report/run_record.h"
#include "report/trace_facts.h"

namespace trireme {

struct Term {
  std::string name;
  double value = 0;  // measured - forecast of this part
};

// terms add up to measured - forecast exactly (the last one is the rest). kNoNumber: not known.
struct Difference {
  double forecast = kNoNumber, measured = kNoNumber;
  std::vector<Term> terms;
  std::string note;
  bool both() const { return known(forecast) && known(measured); }
};

struct Toll {
  std::string name, unit;  // "state shelf", "bytes"
  Difference difference;
};

// Seconds of a step: the median of the timed steps.
Difference step_difference(const RunRecord&, const TraceFacts&);
// The five tolls.
std::vector<Toll> tolls_of(const RunRecord&, const TraceFacts&);

}  // namespace trireme
