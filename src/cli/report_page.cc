#include "cli/report_page.h"

#include "base/json_depth.h"
#include "base/say.h"
#include "report/page.h"

namespace trireme::cli {

void add_page_options(CLI::App& verb, PageRequest& r) {
  verb.add_option("--out", r.out,
                  "HTML file for the page (default: report.html in the run folder; none for several runs)");
  CLI::Option* follow =
      verb.add_flag("--follow", r.follow,
                    "serves the page on this machine and keeps it current, until ctrl-C; takes run folders, "
                    "and folders of run folders");
  verb.add_option("--port", r.port, "port for --follow (default: any free one)")
      ->check(CLI::Range(0, 65535))
      ->needs(follow);
  verb.add_option("--host", r.host,
                  "address for --follow; any but 127.0.0.1, localhost and ::1 adds a random token to the "
                  "page's address")
      ->capture_default_str()
      ->needs(follow);
  follow->excludes("--out");
}

std::optional<nlohmann::json> saved_report(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return std::nullopt;
  nlohmann::json j = shallow_json(read_text(path));
  const auto is = [&j](const char* key, const nlohmann::json& value) {
    return j.contains(key) && j[key] == value;
  };
  if (!j.is_object() || !is("version", 1) || (!is("kind", "run") && !is("kind", "comparison")))
    bad_request("{} is not a report; expected a run folder, or a file that `trireme report RUN --json` wrote",
                path.string());
  return j;
}

fs::path write_page(const PageRequest& r, const fs::path& folder, const nlohmann::json& report) {
  if (r.out.empty() && folder.empty()) return {};
  const fs::path file = r.out.empty() ? folder / "report.html" : fs::path(r.out);
  try {
    write_text_atomic(file, report_page(report));
  } catch (const Error& e) {
    if (!r.out.empty()) throw;
    say("trireme: no page: {}; choose another place with --out\n", e.what());
    return {};
  }
  return file;
}

void follow(const PageRequest& r, const std::vector<std::string>& folders, const FollowReaders& readers) {
  install_interrupt_handlers();
  const FollowRequest request{.folders = {folders.begin(), folders.end()},
                              .place = {.host = r.host, .port = r.port}};
  follow_runs(request, readers, [](const std::string& url) {
    tell("{}\n", url);
    say("trireme: serving until ctrl-C\n");
  });
}

}  // namespace trireme::cli
