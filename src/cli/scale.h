// The subcommands of `trireme scale`, one file each.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/cli.h"
#include "scaling/fit_report.h"

namespace trireme::cli {

void add_scale_fit(CLI::App& scale);
void add_scale_optimum(CLI::App& scale);
void add_scale_plan(CLI::App& scale);
void add_scale_run(CLI::App& scale);

// Whether a folder is that of a ladder; its fit as text, or as JSON, and as a page (default: report.html in
// it).
bool is_ladder(const fs::path& folder);
void report_ladder(const std::string& folder, const std::string& page, bool json);

// Rows of tables (files) and finished runs (folders), in one numbering of runs.
struct ScaleRows {
  std::vector<LossPoint> points;
  std::vector<std::string> notes;  // folders without a loss, ignored columns
};
ScaleRows read_scale_rows(const std::vector<std::string>& paths, int64_t drop_worst = 0);

// A law file, or published constants by name: besiroglu, hoffmann.
LawFile law_called(const std::string& name);

// "1e21" or "3.2e19": FLOPs and other large numbers of options.
// Throws Error (request) unless it is a number above 0.
double positive(const char* option, const std::string& text);

}  // namespace trireme::cli
