#include "comm/comm_set.h"

#include <algorithm>
#include <cstring>

namespace trireme {
namespace {

std::string name_of_axes(Axes axes) {
  std::string name;
  for (Axis a : axes) name += (name.empty() ? "" : "+") + std::string(name_of(a));
  return name;
}

// The place of `rank` in the group, and the number of neighbours that form a part: checked.
int64_t place_in(const std::vector<int>& group, int rank, int parts) {
  require(parts >= 1 && group.size() % size_t(parts) == 0, "a group divides into whole parts");
  return std::find(group.begin(), group.end(), rank) - group.begin();
}

Tensor bytes_of(void* p, int64_t n) {
  return Tensor(p, Shape{n}, DType::u8);
}

template <class T>
T agree(Communicator& c, T value, Reduce op) {
  c.all_reduce({.buf = Tensor(&value, Shape{1}, dtype_of<T>), .op = op}, {});
  return value;
}

}  // namespace

CommSet::CommSet(CommFactory& factory, Mesh mesh) : factory_(factory), mesh_(std::move(mesh)) {
  if (mesh_.world() != factory.world())
    run_failed("the layout has {} ranks and the communicator's world {}; they must be equal", mesh_.world(),
               factory.world());
}

Communicator& CommSet::along(Axes axes) {
  return get(mesh_.group(rank(), axes), name_of_axes(axes));
}

Communicator& CommSet::along_again(Axes axes) {
  return get(mesh_.group(rank(), axes), name_of_axes(axes) + " again", true);
}

Communicator& CommSet::inner(Axes axes, int parts) {
  std::vector<int> group = mesh_.group(rank(), axes);
  auto first = group.begin() + place_in(group, rank(), parts) / parts * parts;
  return get({first, first + parts}, name_of_axes(axes) + " inner");
}

Communicator& CommSet::across(Axes axes, int parts) {
  std::vector<int> group = mesh_.group(rank(), axes), ranks;
  int64_t place = place_in(group, rank(), parts) % parts;
  for (size_t i = size_t(place); i < group.size(); i += size_t(parts)) ranks.push_back(group[i]);
  return get(ranks, name_of_axes(axes) + " across");
}

Communicator& CommSet::some(Axes axes, std::span<const int> coords, std::string_view name) {
  const std::vector<int> group = mesh_.group(rank(), axes);
  std::vector<int> ranks;
  for (int c : coords) ranks.push_back(group.at(size_t(c)));
  std::sort(ranks.begin(), ranks.end());
  return get(ranks, std::string(name));
}

Communicator& CommSet::get(const std::vector<int>& ranks, const std::string& name, bool again) {
  std::unique_ptr<Communicator>& c = groups_[{ranks, again}];
  if (!c) {
    c = factory_.split(ranks, name);
    c->observe(observer_);
  }
  return *c;
}

void CommSet::observe(CommObserver* o) {
  observer_ = o;
  for (auto& [key, c] : groups_) c->observe(o);
}

CommCounts CommSet::counts() const {
  CommCounts all{};
  for (const auto& [key, c] : groups_)
    for (size_t k = 0; k < kCollectives; k++) {
      const CommCount& n = c->counts()[k];
      all[k].calls += n.calls, all[k].payload += n.payload, all[k].wire += n.wire;
    }
  return all;
}

int64_t CommSet::moved_bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, c] : groups_) bytes += c->moved_bytes();
  return bytes;
}

int64_t agree_max(Communicator& c, int64_t value) {
  return agree(c, value, Reduce::max);
}
int64_t agree_sum(Communicator& c, int64_t value) {
  return agree(c, value, Reduce::sum);
}

void gather_bytes(Communicator& c, std::span<const std::byte> mine, std::span<std::byte> all) {
  c.all_gather({.shard = bytes_of(const_cast<std::byte*>(mine.data()), int64_t(mine.size())),
                .full = bytes_of(all.data(), int64_t(all.size()))},
               {});
}

std::string broadcast_text(Communicator& c, std::string text, int root) {
  int64_t size = int64_t(text.size());
  c.broadcast({.buf = Tensor(&size, Shape{1}, DType::i64), .root = root}, {});
  text.resize(size_t(size));
  c.broadcast({.buf = bytes_of(text.data(), size), .root = root}, {});
  return text;
}

std::vector<std::string> gather_texts(Communicator& c, const std::string& mine) {
  // Padded to the longest: texts of agreements are short.
  std::vector<int64_t> sizes(size_t(c.size()));
  int64_t size = int64_t(mine.size()), longest = agree_max(c, size);
  gather_bytes(c, std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));
  std::string padded = mine, all(size_t(longest * c.size()), '\0');
  padded.resize(size_t(longest));
  gather_bytes(c, std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (size_t r = 0; r < sizes.size(); r++)
    texts.push_back(all.substr(r * size_t(longest), size_t(sizes[r])));
  return texts;
}

}  // namespace trireme
