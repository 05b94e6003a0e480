// FLOPs and bytes of a pass of a whole model, part by part, in closed form: where training, prefill and
// decode stand on a roofline.
#pragma once
#include <string_view>
#include <vector>

#include "spec/model_spec.h"

namespace trireme {

enum class Phase { training, prefill, decode };
std::string_view name_of(Phase);

struct PhaseCase {
  ModelSpec model;  // finish()ed
  Phase phase = Phase::training;
  double tokens = 0;        // of a sequence or prompt; in decode those that the cache has
  double batch = 1;         // sequences of a microbatch; prompts, or texts decoded together
  double tp = 1;            // devices that divide each product
  double microbatches = 1;  // training: of a step, over which the optimizer's traffic is spread
};

// Of one device. Products in 16 bits: operands touched once. Attention fused: no scores in memory. Model
// FLOPs as cost/flops.h counts them; latent attention decodes on its compressed rows (2405.04434 section
// 2.1.2), which is more FLOPs and fewer bytes. Of experts the matrices that a balanced router's choices
// touch: E (1 - (1 - k / E)^rows).
struct PhasePart {
  std::string_view name;  // "products", "attention", "head", "elementwise", "optimizer"
  double flops = 0, bytes = 0;
};
std::vector<PhasePart> phase_parts(const PhaseCase&);
PhasePart sum_of(const std::vector<PhasePart>&);

// Bytes that one device sends, and receives, for the products that tp devices divide: two all-reduces a block
// forward (as many backward) of [rows, hidden] in 16 bits, 2 (t - 1) / t of it each.
double tensor_wire_bytes(const PhaseCase&);
// Training: a ring's all-reduce of this device's gradients in 16 bits over n replicas, of each microbatch its
// share.
double gradient_wire_bytes(const PhaseCase&, double replicas);

}  // namespace trireme
