#include "model/routing.h"

#include <algorithm>
#include <numeric>

namespace trireme {

void RecordedRouting::record(const std::string& layer, const Place& at, std::span<const int32_t> ids) {
  auto& tokens = of_layer_[layer];
  for (int64_t n = 0; n * at.choices < int64_t(ids.size()); n++) {
    const auto own = ids.subspan(size_t(n * at.choices), size_t(at.choices));
    tokens[{at.step, at.token(n)}] = {own.begin(), own.end()};
  }
}

void RecordedRouting::replay(const std::string& layer, const Place& at, std::span<int32_t> ids) const {
  auto tokens = of_layer_.find(layer);
  for (int64_t n = 0; n * at.choices < int64_t(ids.size()); n++) {
    const int64_t token = at.token(n);
    if (tokens == of_layer_.end() || !tokens->second.contains({at.step, token}))
      run_failed("{}: no choices were recorded of token {} in step {}", layer, token, at.step);
    const std::vector<int32_t>& own = tokens->second.at({at.step, token});
    require(int64_t(own.size()) == at.choices, "a recording is of another number of choices a token");
    std::copy(own.begin(), own.end(), ids.begin() + n * at.choices);
  }
}

void RecordedRouting::merge(const RecordedRouting& other) {
  for (const auto& [layer, tokens] : other.of_layer_) of_layer_[layer].insert(tokens.begin(), tokens.end());
}

RecordedRouting::Flips RecordedRouting::flips(const RecordedRouting& other) const {
  Flips f;
  for (const auto& [layer, tokens] : of_layer_) {
    auto theirs = other.of_layer_.find(layer);
    if (theirs == other.of_layer_.end()) continue;
    for (const auto& [token, ids] : tokens) {
      auto match = theirs->second.find(token);
      if (match == theirs->second.end()) continue;
      std::vector<int32_t> a = ids, b = match->second;
      std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
      f.tokens++, f.flipped += a != b;
    }
  }
  return f;
}

int64_t LayerRouting::choices() const {
  return std::accumulate(load.begin(), load.end(), int64_t(0));
}

double LayerRouting::max_load() const {
  return max_load(int64_t(load.size()));
}

double LayerRouting::max_load(int64_t ranks) const {
  const int64_t all = choices();
  if (all == 0) return 0;
  const size_t each = load.size() / size_t(ranks);
  int64_t most = 0;
  for (size_t begin = 0; begin + each <= load.size(); begin += each)
    most = std::max(most, std::reduce(load.begin() + begin, load.begin() + begin + each, int64_t{0}));
  return double(most) * double(ranks) / double(all);
}

std::vector<int64_t> Routing::expected(int64_t block, int64_t first_sequence) const {
  std::vector<int64_t> rows;
  if (!expected_) return rows;
  const int64_t microbatch = first_sequence / sequences_;
  for (const int rank : group_) {
    const std::span<const int32_t> of = expected_->of(rank, block, microbatch);
    if (of.empty())
      bad_request(
          "the recorded routing has no rows of rank {}, block {}, microbatch {}; right is one of the run's "
          "own "
          "layout and schedule, with all lines of its step",
          rank, block, microbatch);
    rows.insert(rows.end(), of.begin(), of.end());
  }
  return rows;
}

std::vector<LayerRouting> Routing::totals(int64_t experts) const {
  std::vector<LayerRouting> out;
  for (const auto& layer : steps_) {
    LayerRouting& sum = out.emplace_back();
    sum.load.assign(size_t(experts), 0);
    for (const auto& [first, m] : layer) {
      for (size_t e = 0; e < m.routing.load.size(); e++) sum.load[e] += m.routing.load[e];
      sum.dropped += m.routing.dropped;
      sum.sent += m.routing.sent, sum.computed += m.routing.computed;
      sum.rounds = std::max(sum.rounds, m.routing.rounds);
      sum.aux_loss += m.routing.aux_loss, sum.z_loss += m.routing.z_loss;
    }
  }
  return out;
}

std::vector<double> numbers_of(const std::vector<LayerRouting>& layers) {
  std::vector<double> out;
  for (const LayerRouting& l : layers) {
    out.insert(out.end(), l.load.begin(), l.load.end());
    for (int64_t n : {l.dropped, l.sent, l.computed}) out.push_back(double(n));
    out.push_back(l.aux_loss), out.push_back(l.z_loss);
  }
  return out;
}

void put_numbers(std::vector<LayerRouting>& layers, std::span<const double> numbers) {
  auto n = numbers.begin();
  for (LayerRouting& l : layers) {
    for (int64_t& load : l.load) load = int64_t(*n++);
    for (int64_t* count : {&l.dropped, &l.sent, &l.computed}) *count = int64_t(*n++);
    l.aux_loss = *n++, l.z_loss = *n++;
  }
}

void sum_over_ranks(Communicator& all, std::vector<LayerRouting>& layers) {
  std::vector<int64_t> counts;
  std::vector<double> losses;
  for (const LayerRouting& l : layers) {
    counts.insert(counts.end(), l.load.begin(), l.load.end());
    for (int64_t n : {l.dropped, l.sent, l.computed}) counts.push_back(n);
    losses.push_back(l.aux_loss), losses.push_back(l.z_loss);
  }
  all.all_reduce({.buf = Tensor(counts.data(), Shape{int64_t(counts.size())}, DType::i64)}, {});
  all.all_reduce({.buf = Tensor(losses.data(), Shape{int64_t(losses.size())}, DType::f64)}, {});
  size_t count = 0, loss = 0;
  for (LayerRouting& l : layers) {
    for (int64_t& n : l.load) n = counts[count++];
    for (int64_t* n : {&l.dropped, &l.sent, &l.computed}) *n = counts[count++];
    l.aux_loss = losses[loss++], l.z_loss = losses[loss++];
  }
}

}  // namespace trireme
