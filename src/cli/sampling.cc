#include "cli/sampling.h"

namespace trireme::cli {

std::vector<CLI::Option*> add_sampling(CLI::App& verb, SampleOptions& o) {
  return {
      verb.add_option("--temperature", o.temperature, "0 = the most likely token")->capture_default_str(),
      verb.add_option("--top-k", o.top_k, "keep the k most likely tokens; 0 = all")->capture_default_str(),
      verb.add_option("--top-p", o.top_p, "keep the likeliest tokens that reach p")->capture_default_str(),
      verb.add_option("--seed", o.seed, "of the draws")->capture_default_str()};
}

}  // namespace trireme::cli
