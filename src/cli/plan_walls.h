// trireme plan --walls: memory, time and money of a run, with the arithmetic.
#pragma once
#include "cli/plan_subject.h"

namespace trireme::cli {

struct WallsRequest {
  bool wanted = false, arithmetic = false;
  double tokens = 0, mfu = 0, reach = 0, price = 0, budget = 0;
  int64_t micro = 1, tp = 1, pp = 1, microbatches = 0, chunks = 1;
  void add_to(CLI::App& verb);
};
void plan_walls(const WallsRequest&, const PlanSubject&, const RunRequest&);

}  // namespace trireme::cli
