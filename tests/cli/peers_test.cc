// docs/peers.md: trireme's column is what score says of the same rows, and means are of what stands above
// them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "base/file.h"
#include "base/json.h"
#include "process.h"
#include "source_dir.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

using Errors = std::map<std::string, double>;  // by row, percent

void add_errors(Errors& to, std::vector<std::string> args) {
  TempFolder tmp;
  args[1] = (source_dir() / "data" / args[1]).string();
  const Ran r = trireme(tmp.path(), args);
  ASSERT_EQ(r.code, 0) << r.err;
  const nlohmann::json said = nlohmann::json::parse(r.out);
  for (const auto& row : said.at("rows"))
    to[row.at("id")] = (row.at("predicted").get<double>() / row.at("measured").get<double>() - 1) * 100;
}

TEST(Peers, TheColumnIsWhatScoreSays) {
  Errors said;
  add_errors(said, {"score", "published_runs.json", "--leave-out", "half", "--json"});
  add_errors(said, {"score", "peer_runs.json", "--as-is", "--json"});
  std::istringstream page(read_text(source_dir() / "docs/peers.md"));
  std::vector<double> peers, ours;
  int rows = 0, means = 0;
  const auto mean_of = [](const std::vector<double>& all) {
    double sum = 0;
    for (const double e : all) sum += std::abs(e);
    return sum / double(all.size());
  };
  for (std::string line; std::getline(page, line);) {
    SCOPED_TRACE(line);
    std::vector<std::string> cells;
    std::istringstream parts(line);
    for (std::string c; std::getline(parts, c, '|');) cells.push_back(c);
    if (cells.size() != 5) continue;
    if (cells[1].starts_with(" `")) {
      const std::string id = cells[1].substr(2, cells[1].size() - 4);
      ASSERT_TRUE(said.contains(id)) << id;
      EXPECT_NEAR(std::stod(cells[4]), said[id], 0.051);
      ours.push_back(said[id]);
      if (cells[3] != "  ") peers.push_back(std::stod(cells[3]));
      rows++;
    } else if (cells[1].starts_with(" mean of ")) {
      EXPECT_EQ(std::stoul(cells[1].substr(9)), ours.size());
      EXPECT_NEAR(std::stod(cells[4]), mean_of(ours), 0.051);
      if (!peers.empty()) {
        EXPECT_EQ(peers.size(), ours.size());
        EXPECT_NEAR(std::stod(cells[3]), mean_of(peers), 0.11);  // of what is rounded above
      }
      peers.clear(), ours.clear(), means++;
    }
  }
  EXPECT_EQ(rows, 38);
  EXPECT_EQ(means, 3);
}

}  // namespace
}  // namespace trireme::test
