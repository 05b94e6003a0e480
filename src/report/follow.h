// trireme report --follow: the page of runs that are in progress, kept current.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "report/http_server.h"

namespace trireme {

struct FollowRequest {
  std::vector<fs::path> folders;  // run folders, or folders of run folders; one may appear later
  HttpPlace place;                // anything but loopback adds a random token to the address
};

// How a run folder becomes JSON (docs/report.md). Both only read files, and throw Error if they cannot.
struct FollowReaders {
  std::function<nlohmann::json(const fs::path&)> report;
  std::function<nlohmann::json(const fs::path&)> row;  // in the list of runs
};

// Serves until interrupted. `ready` gets the page's address.
void follow_runs(const FollowRequest&, const FollowReaders&,
                 const std::function<void(const std::string& url)>& ready);

}  // namespace trireme
