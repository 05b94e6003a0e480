// Where the wall time of a run went, over all of its launches.
#pragma once
#include <string>
#include <vector>

#include "report/run_record.h"

namespace trireme {

struct LostTime {
  std::string cause;
  double seconds = 0;
};

// useful_s and what is lost add up to wall_s exactly.
struct MeasuredGoodput {
  double wall_s = 0;    // from the first launch to the end of the last
  double useful_s = 0;  // steps that stayed
  std::vector<LostTime> lost;
  std::string why_not;  // sentence: why the wall time is not known; then wall_s is that of steps and stalls
  double share() const { return wall_s > 0 ? useful_s / wall_s : 0; }
};
MeasuredGoodput measured_goodput(const RunRecord&);

}  // namespace trireme
