// The page of `trireme report`: written to a file, or served while runs are in progress.
#pragma once
#include <optional>
#include <string>

#include "base/file.h"
#include "cli/cli.h"
#include "report/follow.h"
#include "report/report.h"

namespace trireme::cli {

struct PageRequest {
  std::string out;
  bool follow = false;
  std::string host = "127.0.0.1";
  int port = 0;
};

// --out, --follow, --host, --port.
void add_page_options(CLI::App& verb, PageRequest&);

// The report that `path` holds, if it is a file: `--json` wrote it. None if it is a folder, or missing.
// Throws Error (request) if the file is not a report.
std::optional<nlohmann::json> saved_report(const fs::path& path);

// Writes the page to --out; without --out to report.html in `folder`, or not at all if `folder` is empty.
// Returns its path; "" = not written. Throws Error if --out cannot be written; if the folder cannot, prints a
// note.
fs::path write_page(const PageRequest&, const fs::path& folder, const nlohmann::json& report);

// Reads a run for its report, with the plans that this machine or the run's cluster file can price; in
// report.cc.
ReportInput report_input(const fs::path& run);

// Writes report.html into a run folder; in report.cc.
fs::path write_run_page(const fs::path& run);

// Serves the runs until a signal comes. Prints the address.
void follow(const PageRequest&, const std::vector<std::string>& folders, const FollowReaders&);

}  // namespace trireme::cli
