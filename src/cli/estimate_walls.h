// trireme estimate: memory, time and money of a run in closed form, with the arithmetic.
#pragma once
#include <optional>

#include "cli/plan_subject.h"
#include "estimate/walls.h"

namespace trireme::cli {

struct WallsRequest {
  bool all = false, arithmetic = false;
  double tokens = 0, mfu = 0, reach = 0, price = 0, budget = 0;
  double mtbf_hours = 0, save_s = 0;
  int64_t micro = 1, tp = 1, pp = 1, microbatches = 0, chunks = 1;
  int64_t ep = 1, top_k = 0;
  int zero = 0;
  bool recompute = false;
  void add_to(CLI::App& verb);
};
// The bytes of a run on a device by name, as the search prices them. Nothing: it does not know the run, or
// the device lacks a figure.
std::optional<RunBytes> searched_bytes(const RunSpec&, SubjectDevice);
void estimate_walls(const WallsRequest&, const PlanSubject&, const RunRequest&);

}  // namespace trireme::cli
