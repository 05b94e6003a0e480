// Keys that --set gives to a subcommand that does not read them.
#pragma once
#include <string_view>

#include "cli/cli.h"

namespace trireme::cli {

// A run file has keys for all subcommands, and none of them is reported. A key of --set was meant for this
// subcommand:
// - a degree of the layout above 1 is a bad_request that names the key (eval, generate, chat, convert); eval
// and
//   generate take --layout in its place;
// - any other key that the subcommand does not read is named in one note on stderr.
// Call before the run is loaded.
void check_set_keys(std::string_view verb, const RunRequest&);

// eval and generate: one note on stderr if the run trains with 8-bit products, which they do not use.
void note_fp8(std::string_view verb, const RunSpec&);

}  // namespace trireme::cli
