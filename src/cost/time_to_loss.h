// Tokens that a model takes to a loss, at a batch size: Chinchilla's loss and the critical batch size.
#pragma once

namespace trireme {

// L(N, D) = E + A / N^alpha + B / D^beta nats per token (Hoffmann et al. 2022, approach 3). N parameters, D
// tokens. Defaults: the constants of Besiroglu et al. 2024, a second fit to the same runs.
struct ChinchillaLaw {
  double E = 1.8172, A = 482.01, B = 2085.43, alpha = 0.3478, beta = 0.3658;
  double loss(double parameters, double tokens) const;
};
// The default law's.
double chinchilla_loss(double parameters, double tokens);
// Its D at a loss; infinite where no number of tokens reaches it.
double chinchilla_tokens(double parameters, double loss);

// B_crit(L) = 2.1e8 L^-4.8 tokens (Kaplan et al. 2020, figure 10): twice the tokens and twice the steps of
// the least of each (McCandlish et al. 2018).
double critical_batch(double loss);

// Tokens to the loss in batches of so many tokens: D (1 + B / B_crit), from (S/S_min - 1)(E/E_min - 1) = 1
// with Chinchilla's D for E_min, whose runs had small batches.
double tokens_to_loss(double parameters, double loss, double batch_tokens);

}  // namespace trireme
