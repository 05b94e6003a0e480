// Tables of the rotary embedding (Su et al. 2021), on the host: cos and sin of position * frequency.
//
// Every step is rounded as transformers rounds it, so that both programs rotate by the same angles:
// frequencies and angles in f32, cos and sin of the f32 angle (here in double, then rounded once).
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme {

// How frequencies are stretched for contexts longer than the model was trained on.
enum class RopeStretch : uint8_t {
  none,
  linear,  // every frequency divided by factor (Chen et al. 2023)
  llama3,  // by wavelength: long ones divided by factor, short ones kept, those between blended (Llama 3.1)
  yarn,    // by number of the pair, between two that turn given times (Peng et al. 2023, 2309.00071)
};
RopeStretch rope_scaling_from_name(std::string_view);  // "none", "linear", "llama3", "yarn"; else bad_request

struct RopeAngles {
  double theta = 10000;  // frequency i of D/2 is theta^(-2i/D) radians a position
  RopeStretch scaling = RopeStretch::none;
  double factor = 1;
  // llama3 only: wavelengths above original_max_positions / low_freq_factor are long, those below
  // original_max_positions / high_freq_factor short.
  double low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_positions = 8192;
  // yarn only: pairs that turn more than beta_fast times in original_max_positions are kept, those that turn
  // fewer than beta_slow times divided by factor.
  double beta_fast = 32, beta_slow = 1;
  double amplitude = 1;  // of cos and sin
};

// Of yarn: what rotated queries and keys are multiplied with (RopeScaling::attention_factor), and what scores
// of latent attention are.
struct YarnFactors {
  double amplitude = 1, scores = 1;
};
YarnFactors yarn_factors(double factor, double mscale, double mscale_all_dim, double attention_factor);

// frequency: [head_dim / 2].
void rope_frequencies(const RopeAngles&, int64_t head_dim, std::span<float> frequency);
// cos, sin: [positions, head_dim / 2], row-major; times amplitude.
void rope_table(const RopeAngles&, int64_t positions, int64_t head_dim, std::span<float> cos,
                std::span<float> sin);

}  // namespace trireme
