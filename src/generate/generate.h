// Texts from a model: prompts are read into a key/value cache, then every text grows by a token a pass.
//
// Texts share the passes: as many as there are slots run together, and when one ends the next prompt takes
// its slot at once. Each prompt is read by a pass of its own and each draw is a function of (seed, number of
// the prompt, number of the token), so a text comes out the same alone and among others, to the bit.
//
// Several samples of one prompt are prompts that follow one another. The prompt is read once: its keys and
// values are copied from a slot that holds them. (Except after all of its texts outgrew the context.)
//
// A text that reaches the end of the context goes on from its last half, which is read again: positions count
// from 0 anew, as in training, and the first half is forgotten. Half, because reading costs once what
// decoding half a context costs many times.
#pragma once
#include <functional>
#include <vector>

#include "generate/sampler.h"
#include "runtime/booking.h"

namespace trireme {

struct GenerateOptions {
  SampleOptions sample;
  int64_t tokens = 200;       // new ones per text, at most
  int64_t context = 256;      // tokens that the model sees at once, prompt and text
  int32_t end_of_text = -1;   // stops when drawn; -1 = never
  int64_t vocab = 0;          // ids below this can be drawn (a model's rows beyond its tokenizer's mean
                              // nothing); 0 = all
  int64_t parallel = 1;       // texts at once
  bool share_prompts = true;  // a prompt equal to the one before is not read again
};

// Why a text ended.
enum class Finish : uint8_t { length, end_of_text, stopped, interrupted };
std::string_view name_of(Finish);  // "length", "end_of_text", "stop", "interrupted"

struct Generated {
  std::vector<int32_t> tokens;  // the new ones; an end-of-text is not among them
  Finish finish = Finish::length;
};

struct GenerateHooks {
  // Each new token, an end-of-text apart. True: the text ends with it (a stop string).
  std::function<bool(size_t prompt, int32_t id)> token;
  // A text is complete; texts that run together end in any order.
  std::function<void(size_t prompt, const Generated&)> done;
  // At temperature 0: rounding may choose this new token. The two largest logits differ by no more than
  // kNearTie of the row's largest magnitude. token counts from 0.
  std::function<void(size_t prompt, size_t token, float gap)> near_tie;
  // Asked between passes. True: every text that runs ends as it is, the others do not begin.
  std::function<bool()> leave;
};

inline constexpr float kNearTie = 1e-5f;  // f32: other orders of sums move logits by less

struct GenerateStats {
  int64_t read_tokens = 0;    // prompts, and texts that were read again
  int64_t shared_tokens = 0;  // prompts whose keys and values were copied
  int64_t new_tokens = 0;     // end-of-texts included
  int64_t decoded = 0;        // new_tokens from decoding passes; the others came with reading
  int64_t reread = 0;         // how often a text reached the end of the context
  double read_s = 0, decode_s = 0;
};

using Prompts = std::vector<std::vector<int32_t>>;

// The memory that generating from these prompts takes. bad_request where a prompt has no token.
GenerationShape generation_shape(const Prompts&, const GenerateOptions&);

// The runner's arena was booked for generation_shape(prompts, options) or more.
GenerateStats generate(StageRunner&, const Prompts&, const GenerateOptions&, const GenerateHooks&);

}  // namespace trireme
