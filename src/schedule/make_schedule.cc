#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, 10> kScheduleNames = {
    "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v"};
constexpr int kMostStages = std::numeric_limits<int16_t>::max();  // stages, microbatches

bool is_v(std::string_view name) {
  return name == "zb-v" || name == "v-half" || name == "v-min" || name == "dualpipe-v";
}

void check_chunks(std::string_view name, int chunks) {
  if (name == "interleaved" ? chunks >= 2 : chunks == default_chunks(name)) return;
  bad_request("layout.chunks = {}: layout.schedule = \"{}\" takes chunks {}", chunks, name,
              name == "interleaved" ? ">= 2 (with one it would be 1f1b)"
              : is_v(name)          ? "= 2 (a V has two model chunks a rank)"
                                    : "= 1 (one model chunk a rank)");
}

void check_dualpipe(int pp, int microbatches) {
  if (pp % 2 != 0)
    bad_request(
        "layout.pp = {}: layout.schedule = \"dualpipe\" takes an even number of pipeline ranks (microbatches "
        "enter at both ends and meet in the middle); dualpipe-v takes any",
        pp);
  if (microbatches < 2)
    bad_request(
        "batch: 1 microbatch a step; layout.schedule = \"dualpipe\" takes at least 2, one for either end");
}

}  // namespace

std::span<const std::string_view> schedule_names() {
  return kScheduleNames;
}

int default_chunks(std::string_view name) {
  return is_v(name) || name == "interleaved" ? 2 : 1;
}

Schedule make_schedule(std::string_view name, int pp, int chunks, int microbatches) {
  if (std::find(kScheduleNames.begin(), kScheduleNames.end(), name) == kScheduleNames.end()) {
    bad_request("layout.schedule = \"{}\" is unknown; schedules are {}", name,
                fmt::join(kScheduleNames, ", "));
  }
  check_chunks(name, chunks);
  if (pp < 1 || pp > kMostStages) bad_request("layout.pp = {} must be from 1 to {}", pp, kMostStages);
  if (int64_t(pp) * chunks > kMostStages)
    bad_request("layout.pp * layout.chunks = {} * {} stages; at most {}", pp, chunks, kMostStages);
  if (microbatches < 1 || microbatches > kMostStages) {
    bad_request("batch: {} microbatches a step; global / (dp * micro) must be from 1 to {}", microbatches,
                kMostStages);
  }
  if (name == "gpipe") return gpipe(pp, microbatches);
  if (name == "1f1b") return one_f_one_b(pp, microbatches);
  if (name == "interleaved") return interleaved(pp, chunks, microbatches);
  if (name == "zb-h1") return zb_h1(pp, microbatches);
  if (name == "zb-h2") return zb_h2(pp, microbatches);
  if (name == "zb-v") return zb_v(pp, microbatches);
  if (name == "v-half") return v_half(pp, microbatches);
  if (name == "v-min") return v_min(pp, microbatches);
  if (name == "dualpipe-v") return dualpipe_v(pp, microbatches);
  check_dualpipe(pp, microbatches);
  return dualpipe(pp, microbatches);
}

}  // namespace trireme
