#include "train/replicas.h"

#include <algorithm>

#include "base/file.h"
#include "device/device_memory.h"

namespace trireme {
namespace {

// Memory that the processor does not reach comes to the host first.
uint64_t hash_of(const Tensor& t) {
  const size_t bytes = size_t(t.bytes());
  const CopyBytes copy = device_copy_of(t.data);
  if (!copy) return hash64(t.data, bytes);
  std::vector<std::byte> host(bytes);
  copy(host.data(), t.data, t.bytes());
  return hash64(host.data(), bytes);
}

uint64_t key_of(const std::string& name, const Slice& box, const Range& range) {
  std::string text = fmt::format("{} [{},{})", name, range.begin, range.end);
  for (size_t d = 0; d < size_t(box.extent.rank); d++)
    text += fmt::format(" {}+{}", box.offset[d], box.extent[d]);
  return std::max<uint64_t>(1, hash64(text.data(), text.size()));
}

// The rank that stands against most of the others, or, of two, the higher.
int odd_one(const std::vector<int>& ranks, const std::map<int, uint64_t>& hashes) {
  auto likes = [&](int rank) {
    return std::count_if(ranks.begin(), ranks.end(),
                         [&](int other) { return hashes.at(other) == hashes.at(rank); });
  };
  int odd = ranks.back();
  for (int rank : ranks)
    if (likes(rank) < likes(odd)) odd = rank;
  return odd;
}

}  // namespace

Replicas::Replicas(const StageRunner& r) : runner_(r) {
  if (!r.comms()) return;
  const FlatState& flat = r.flat();
  auto hold = [&](const std::string& name, const Tensor& t, const Param& p, const Range& range,
                  bool overwritten = false) {
    if (t.numel() > 0) pieces_.push_back({name, t, key_of(name, p.box, range), overwritten});
  };
  const bool zero_gathers = r.sharing().zero == 1 || r.sharing().zero == 2;
  const bool overwrites = zero_gathers || flat.master.data != flat.weights.data;
  for (const Param& p : r.params().buffers) hold(p.decl.name, p.weight, p, {0, p.numel()});
  for (const Param& p : r.params().params) {
    const Range own = r.memory().owned(p);
    const bool whole = r.sharing().zero < 3;
    if (p.decl.frozen) {
      hold(p.decl.name, whole ? p.weight : r.memory().state_tensor(p, ""), p,
           whole ? Range{0, p.numel()} : own);
      continue;
    }
    if (whole) hold(p.decl.name, p.weight, p, {0, p.numel()}, overwrites);
    if (!whole || flat.master.data != flat.weights.data)
      hold(p.decl.name + "/master", r.memory().state_tensor(p, ""), p, own);
    for (const StateDecl& s : r.memory().state_decls())
      if (s.has(p.decl)) hold(p.decl.name + "/" + s.name, r.memory().state_tensor(p, s.name), p, own);
  }
  const size_t world = size_t(r.comms()->world());
  most_pieces_ = size_t(agree_max(r.comms()->control(), int64_t(pieces_.size())));
  std::vector<uint64_t> keys(most_pieces_);
  for (size_t i = 0; i < pieces_.size(); i++) keys[i] = pieces_[i].key;
  keys = everyones(keys);

  std::map<uint64_t, Ranks> holders;
  for (size_t i = 0; i < keys.size(); i++)
    if (keys[i]) holders[keys[i]].push_back(int(i / most_pieces_));
  for (const auto& [key, ranks] : holders)
    if (ranks.size() > 1) sets_.push_back(ranks);
  std::sort(sets_.begin(), sets_.end());
  sets_.erase(std::unique(sets_.begin(), sets_.end()), sets_.end());
  has_.resize(world);
  for (size_t s = 0; s < sets_.size(); s++)
    for (int rank : sets_[s]) has_[size_t(rank)].push_back(s);
  for (const std::vector<size_t>& has : has_) most_sets_ = std::max(most_sets_, has.size());
  for (const auto& [key, ranks] : holders)
    if (ranks.size() > 1)
      set_of_[key] = size_t(std::lower_bound(sets_.begin(), sets_.end(), ranks) - sets_.begin());

  const std::vector<size_t>& has = has_[size_t(r.comms()->rank())];
  mine_.resize(has.size());
  for (size_t i = 0; i < pieces_.size(); i++)
    if (auto at = set_of_.find(pieces_[i].key); at != set_of_.end())
      mine_[size_t(std::lower_bound(has.begin(), has.end(), at->second) - has.begin())].push_back(i);
  for (std::vector<size_t>& of_set : mine_)
    std::sort(of_set.begin(), of_set.end(),
              [&](size_t a, size_t b) { return pieces_[a].key < pieces_[b].key; });
}

// Rank behind rank, of equal length.
std::vector<uint64_t> Replicas::everyones(const std::vector<uint64_t>& mine) const {
  std::vector<uint64_t> all(mine.size() * size_t(runner_.comms()->world()));
  gather_bytes(runner_.comms()->control(), std::as_bytes(std::span(mine)),
               std::as_writable_bytes(std::span(all)));
  return all;
}

bool Replicas::overwrites_weights() const {
  const bool any = std::any_of(pieces_.begin(), pieces_.end(),
                               [](const Piece& p) { return p.overwritten && !device_copy_of(p.data.data); });
  return runner_.comms() && agree_max(runner_.comms()->control(), any) > 0;
}

void Replicas::compare(int64_t step) const {
  compare(step, Which::all);
}
void Replicas::compare_weights(int64_t step) const {
  compare(step, Which::overwritten);
}

// By set that this rank is in: a hash of its pieces.
std::vector<uint64_t> Replicas::words_of(Which which) const {
  std::vector<uint64_t> words(most_sets_);
  for (size_t s = 0; s < mine_.size(); s++)
    for (size_t i : mine_[s])
      if (which == Which::all || pieces_[i].overwritten)
        words[s] = words[s] * 0x9E3779B97F4A7C15u + hash_of(pieces_[i].data);
  return words;
}

void Replicas::compare(int64_t step, Which which) const {
  if (most_sets_ == 0) return;
  const std::vector<uint64_t> words = words_of(which);
  const std::vector<uint64_t> all = everyones(words);
  std::vector<uint64_t> of_set(sets_.size());
  std::vector<char> seen(sets_.size());
  bool same = true;
  for (size_t rank = 0; rank < has_.size(); rank++)
    for (size_t s = 0; s < has_[rank].size(); s++) {
      const uint64_t word = all[rank * most_sets_ + s];
      const size_t set = has_[rank][s];
      if (!seen[set]) seen[set] = 1, of_set[set] = word;
      same &= of_set[set] == word;
    }
  if (!same) name_difference(step);
  // This rank waited for the slowest one. No later comparison finds a change in that time, because the update
  // reads the owner's part and copies the result to all ranks.
  if (which == Which::overwritten && words_of(which) != words)
    run_failed(
        "step {}: its weights changed in memory after the backward pass: memory is faulty; every checkpoint "
        "was saved after a comparison that agreed, so the newest one is good",
        step);
}

void Replicas::name_difference(int64_t step) const {
  std::vector<uint64_t> keys(most_pieces_), hashes(most_pieces_);
  for (size_t i = 0; i < pieces_.size(); i++) keys[i] = pieces_[i].key, hashes[i] = hash_of(pieces_[i].data);
  keys = everyones(keys), hashes = everyones(hashes);
  std::map<uint64_t, std::map<int, uint64_t>> by_key;  // key -> rank -> hash
  for (size_t i = 0; i < keys.size(); i++)
    if (set_of_.count(keys[i])) by_key[keys[i]][int(i / most_pieces_)] = hashes[i];
  const int me = runner_.comms()->rank();
  for (uint64_t key : keys) {
    if (!set_of_.count(key)) continue;
    const Ranks& ranks = holders(key);
    const std::map<int, uint64_t>& of = by_key.at(key);
    const int odd = odd_one(ranks, of), other = ranks.front() == odd ? ranks.back() : ranks.front();
    if (of.at(odd) == of.at(other)) continue;
    // The odd one says so itself; the others hear it here.
    if (me != odd) agree_max(runner_.comms()->control(), 0);
    auto mine = std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return p.key == key; });
    run_failed(
        "step {}: its {} differs from the copy of rank {}: memory or a processor is faulty, or an op is not "
        "deterministic; every checkpoint was saved after a comparison that agreed, so the newest one is good",
        step, mine == pieces_.end() ? "state" : mine->name, other);
  }
  run_failed("step {}: copies of the same state differed, and do so no more when looked at again", step);
}

}  // namespace trireme
