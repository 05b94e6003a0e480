// Training, prefill and decode of a model on a device's roofline, and on those of its links.
#pragma once
#include <string>
#include <vector>

#include "cost/phases.h"
#include "cost/step_time.h"

namespace trireme {

struct RooflineCase {
  std::string name, device, device_source;
  ModelSpec model;  // finish()ed
  DeviceFigures figures;
  int64_t seq = 4096, micro = 1, microbatches = 1;  // training
  int64_t context = 4096, batch = 1;                // prompts and texts
  int64_t tp = 1, gpus = 1;
  std::string too_large;  // why the run does not fit into memory; "" = it does, or that is not known
};

// A point: FLOPs over bytes of one resource, under the lower of the peak and the resource's slope.
struct RooflinePoint {
  Phase phase = Phase::training;
  std::string part;             // "all", "products", ...; of a link "tensor parallel", "gradients"
  double flops = 0, bytes = 0;  // of one device
  double slope = 0;             // bytes/s of the resource
  double peak = 0;              // FLOP/s
  double seconds = 0;           // of all: its parts added up; else the longer of computing and moving
  double intensity() const { return bytes > 0 ? flops / bytes : 0; }
  bool compute_bound() const { return bytes <= 0 || intensity() >= peak / slope; }
  double attainable() const { return seconds > 0 ? flops / seconds : 0; }  // FLOP/s
};
struct Roofline {
  double ridge = 0;                      // FLOPs a byte of memory
  double near_ridge = 0, far_ridge = 0;  // of the links in a node and beyond; 0 = not known
  std::vector<RooflinePoint> memory, network;
  double rows_at_ridge = 0;  // of a pass, at which its products leave the slope; 0 = at no number of rows
};
Roofline roofline_of(const RooflineCase&);

std::string roofline_text(const RooflineCase&, const Roofline&);
std::string roofline_json(const RooflineCase&, const Roofline&);
std::string roofline_svg(const RooflineCase&, const Roofline&);

}  // namespace trireme
