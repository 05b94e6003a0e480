// trireme search RUN.toml for the ranks of a CPU: layouts are booked on meta and priced as `plan` prices
// them.
#pragma once
#include "cli/search.h"

namespace trireme::cli {

// Returns whether the run computes on CPUs: by its own keys, and by the cluster file of --cluster or the run.
// Requires: options.layouts().
bool searches_cpu(const RunRequest&, const PlanSubject&);
// Prints the answer, and writes the run file of --out. Throws Error (request): options of closed forms, or no
// layout fits.
void search_cpu(const CLI::App& verb, const SearchOptions&, const PlanSubject&, RunRequest);

}  // namespace trireme::cli
