// trireme estimate --roofline: training, prefill and decode of a model on a device's roofline.
#pragma once
#include "cli/estimate_walls.h"

namespace trireme::cli {

struct RooflineRequest {
  bool wanted = false;
  int64_t context = 4096, batch = 1;
  void add_to(CLI::App& verb);
};
void estimate_roofline(const RooflineRequest&, const PlanSubject&, const WallsRequest&, const RunRequest&,
                       const std::string& svg);

}  // namespace trireme::cli
