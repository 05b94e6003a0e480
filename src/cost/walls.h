// What stands between a model and its training: memory, time and money, in closed form, before a layout is
// chosen. What a layout costs is cost/step_time.h's and cost/step_memory.h's; what this program will book,
// forecast/forecast.h's.
#pragma once
#include <cstdint>
#include <string_view>

#include "cost/memory.h"

namespace trireme {

// Bytes of state that one of n replicas keeps of `parameters` (Rajbhandari et al. 2020, section 3, figure 1):
// zero 1 divides the optimizer's by n, 2 also gradients, 3 also weights. per: bytes of one parameter by
// bucket.
double zero_state_bytes(double parameters, int zero, double n, const BucketBytes& per);
// How many times less that is than zero 0's; n = infinity: the limit, itself infinite for zero 3.
double zero_saving(int zero, double n, const BucketBytes& per);
// Bytes on the wire relative to plain data parallelism's all-reduce, which is a reduce-scatter and an
// all-gather of all parameters, once per step (section 7). Zero 2 reduces in each microbatch and gathers
// once. Zero 3 reduces once and gathers twice in each microbatch.
double zero_traffic(int zero, double microbatches = 1);

// Bytes that a tensor parallel rank sends for one layer and microbatch: two all-reduces forward, two
// backward, of `rows` x `hidden` 16-bit values, by rings (Shoeybi et al. 2019).
double tensor_parallel_bytes(double rows, double hidden, double tp);
// Bytes that an expert parallel rank sends for one layer and microbatch: rows go to `top_k` experts and back,
// forward and backward, with balanced routing; 1 / ep of them stay.
double all_to_all_bytes(double rows, double hidden, double top_k, double ep);

double devices_at_least(double bytes, double device_memory);  // whole ones

// FLOPs of training in the field's short form: 2 a parameter and token forward, 4 backward (Kaplan et al.
// 2020, section 2.1). parameters: those that a token visits.
double six_n_d(double parameters, double tokens);
// Hardware FLOPs over model FLOPs where this share of the forward pass is done again.
double recompute_factor(double share);
double training_seconds(double flops, double devices, double peak, double mfu);

// Of what is paid at `mfu`, the share that `reach` would not need; how much more training it would buy.
double wasted_share(double mfu, double reach);
double more_training(double mfu, double reach);

// Idle share of a pipeline's step, GPipe's and 1F1B's with equal stages, v chunks a rank interleaved:
// (p - 1) / (v m + p - 1) (Huang et al. 2019; Narayanan et al. 2021, section 2.2).
struct Ratio {
  int64_t above = 0, below = 1;
  double value() const { return double(above) / double(below); }
};
bool bubble_is_plain(std::string_view schedule);  // "1f1b", "gpipe", "interleaved"
Ratio bubble_share(int64_t stages, int64_t microbatches, int64_t chunks = 1);

// Bytes that a layer of gpt's kind keeps of a microbatch in 16 bits with dropout (Korthikanti et al. 2022,
// equations 1, 2, 4 and table 2). Selective: attention's scores, softmax and dropout are done again; fused
// attention keeps as little.
enum class KeptActivations { all, selective, input };
struct ActivationsCase {
  double seq = 0, micro = 1, hidden = 0, heads = 0, tp = 1;
  bool sequence = false;  // sequence parallelism
  KeptActivations kept = KeptActivations::all;
};
double kept_activation_bytes(const ActivationsCase&);

// Keys and values of `context` tokens of `batch` texts in all layers, in 16 bits; of latent attention the
// compressed row and what is rotated (DeepSeek-V2, 2405.04434 section 2.1.3).
double kv_cache_bytes(const ModelSpec&, double context, double batch);

}  // namespace trireme
