// A model for the subcommands that evaluate and generate: on one rank, or divided over several.
#pragma once
#include <functional>
#include <string>

#include "cli/source.h"

namespace trireme::cli {

// --layout of a subcommand.
CLI::Option* add_layout(CLI::App& verb, std::string& layout);

// Bytes of the arena of a rank: run, threads and pp_rank as book_generation() takes them.
using BookModel = std::function<int64_t(const RunSpec&, int threads, int pp_rank)>;
// Bytes of arenas as they were booked: all ranks together, and the rank that needs most.
struct ModelMemory {
  int64_t ranks = 1, all = 0, most = 0;
};

// Loads the model of `used` in this layout and calls `work` with it, on rank 0 alone. Several ranks are
// threads of this process, with a device each, or processes that a launcher started, of which those of other
// ranks end here. The runner's calls are for all ranks (StageRunner::divided()). An error of one rank ends
// all, and is thrown here.
void use_model(const UsedRun&, const std::string& layout, const BookModel&,
               const std::function<void(LoadedModel&, const ModelMemory&)>& work);

}  // namespace trireme::cli
