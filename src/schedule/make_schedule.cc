#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, 7> kScheduleNames = {"gpipe", "1f1b", "interleaved", "zb-h1",
                                                            "zb-h2", "zb-v", "dualpipe-v"};

}  // namespace

Schedule make_schedule(std::string_view name, int pp, int chunks, int microbatches) {
  if (std::find(kScheduleNames.begin(), kScheduleNames.end(), name) == kScheduleNames.end()) {
    bad_request("layout.schedule = \"{}\" is unknown; schedules are {}", name,
                fmt::join(kScheduleNames, ", "));
  }
  if (name != "gpipe" && name != "1f1b") {
    bad_request("layout.schedule = \"{}\" is not in this version, which has gpipe and 1f1b", name);
  }
  if (chunks != 1) {
    bad_request("layout.chunks = {}: layout.schedule = \"{}\" takes chunks = 1 (one model chunk a rank)",
                chunks, name);
  }
  constexpr int kMost = std::numeric_limits<int16_t>::max();
  if (pp < 1 || pp > kMost) bad_request("layout.pp = {} must be from 1 to {}", pp, kMost);
  if (microbatches < 1 || microbatches > kMost) {
    bad_request("batch: {} microbatches a step; global / (dp * micro) must be from 1 to {}", microbatches,
                kMost);
  }
  return name == "gpipe" ? gpipe(pp, microbatches) : one_f_one_b(pp, microbatches);
}

}  // namespace trireme
