#include "train/data_place.h"

#include <algorithm>

#include "base/rounding.h"
#include "spec/batch_ramp.h"

namespace trireme {
namespace {

constexpr const char* kPlace = "data_place";
constexpr const char* kDrawn = "drawn";

std::string manifest_of(const Checkpoint& c) {
  return (c.folder() / kManifestName).string();
}

[[noreturn]] void broken(const Checkpoint& c) {
  bad_request(
      "{}: state holds no place in the data that a run can continue from; the file was edited, or "
      "another version wrote it",
      manifest_of(c));
}

int64_t count_from(const nlohmann::json& j, const char* key, const Checkpoint& c) {
  if (!j.is_object() || !j.contains(key) || !j[key].is_number_integer()) broken(c);
  const int64_t n = j[key];
  if (n < 0) broken(c);
  return n;
}

std::vector<int64_t> counts_from(const nlohmann::json& list, const Checkpoint& c) {
  std::vector<int64_t> out;
  if (!list.is_array()) broken(c);
  for (const nlohmann::json& n : list) {
    if (!n.is_number_integer() || n.get<int64_t>() < 0) broken(c);
    out.push_back(n);
  }
  return out;
}

// Counts the steps after `begin` up to `end`.
int64_t samples_between(const BatchSpec& batch, int64_t begin, int64_t end) {
  return samples_until(batch, end) - samples_until(batch, begin);
}

// Samples drawn of each shard; zeros if a version without that record saved a mixture.
std::vector<int64_t> drawn_of(const Checkpoint& c, const RunSpec& saved) {
  const nlohmann::json& state = c.manifest().state;
  if (state.is_object() && state.contains(kDrawn)) return counts_from(state[kDrawn], c);
  std::vector<int64_t> zeros(saved.data.train.size(), 0);
  if (zeros.size() == 1) zeros[0] = c.manifest().samples;
  return zeros;
}

}  // namespace

void record_place(Manifest& m, const RunPlace& place, const RunSpec& run, const std::vector<int64_t>& drawn) {
  const int64_t here = samples_between(run.batch, place.loader.step, m.step);
  m.samples = place.samples + here;
  m.tokens = place.tokens + here * run.data.seq_len;
  if (drawn.size() > 1 || place != RunPlace()) m.state[kDrawn] = drawn;
  if (place == RunPlace()) return;
  m.state[kPlace] = {{"step", place.loader.step},
                     {"samples", place.loader.samples},
                     {"drawn", place.loader.drawn},
                     {"samples_before", place.samples},
                     {"tokens_before", place.tokens}};
}

RunPlace place_of(const Checkpoint& c) {
  const nlohmann::json& state = c.manifest().state;
  if (!state.is_object() || !state.contains(kPlace)) return {};
  const nlohmann::json& j = state[kPlace];
  RunPlace p;
  p.loader.step = count_from(j, "step", c);
  p.loader.samples = count_from(j, "samples", c);
  p.samples = count_from(j, "samples_before", c);
  p.tokens = count_from(j, "tokens_before", c);
  if (!j.contains("drawn")) broken(c);
  p.loader.drawn = counts_from(j["drawn"], c);
  if (p.loader.step > c.manifest().step) broken(c);
  return p;
}

RunPlace branch_place(const Checkpoint& c, const RunSpec& saved, const RunSpec& run, const DataContent& now) {
  const Manifest& m = c.manifest();
  const RunPlace parent = place_of(c);
  const bool recorded = m.state.is_object() && m.state.contains("data");
  const std::vector<ShardContent> then =
      recorded ? data_content_of(m.state["data"], saved, manifest_of(c)).train : std::vector<ShardContent>();
  const bool same = (recorded ? then == now.train : saved.data.train == run.data.train) &&
                    saved.data.weights == run.data.weights && saved.data.seq_len == run.data.seq_len;
  RunPlace place{.loader = {.step = m.step}, .samples = m.samples, .tokens = m.tokens};
  if (same) {
    if (same_batches(saved.batch, run.batch, m.step)) return parent;
    place.loader.samples = parent.loader.samples + samples_between(saved.batch, parent.loader.step, m.step);
    place.loader.drawn = parent.loader.drawn;
    return place;
  }
  const std::vector<int64_t> drawn = drawn_of(c, saved);
  for (const ShardContent& shard : now.train) {
    const auto at = std::find(then.begin(), then.end(), shard);
    const size_t source = size_t(at - then.begin());
    const int64_t n = at == then.end() || source >= drawn.size() ? 0 : drawn[source];
    place.loader.drawn.push_back(div_up(n * saved.data.seq_len, run.data.seq_len));
  }
  return place;
}

}  // namespace trireme
