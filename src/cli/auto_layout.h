// Run files that leave the layout to the program: layout = "auto", or batch.micro = "auto".
#pragma once
#include <string>

#include "cli/cli.h"
#include "search/auto_layout.h"

namespace trireme::cli {

// What the file and --set leave open; the request is not loaded.
AutoWish auto_wish_of(const RunRequest&);

// A run that continues from checkpoints keeps what rules gave when its folder began; a branch keeps its
// parent's. Another version may have other rules, and another train.steps another batch and warmup. Puts the
// kept numbers into `asked`. Returns a note if they are not the rules'.
std::string take_rules_of_before(RunSpec& asked, const RunRequest&);

struct ChosenRun {
  RunSpec run;          // as RunRequest::load() gives it
  std::string note;     // what was chosen, of what; empty: the file says it all
  PrecisionSpec asked;  // as the file has it, "auto"s and all
};
// RunRequest::load(), or with the layout chosen on this machine. ranks: of `layout = "auto"`, the product of
// the axes that are given beside it, else one a core.
// goes_on: a run folder with a plan of the same run on as many ranks keeps its layout (of batch.micro =
// "auto": in the same layout its microbatch), so that a resume is bit-identical.
ChosenRun load_or_choose(const RunRequest&, bool goes_on, const Measuring& = {});

}  // namespace trireme::cli
