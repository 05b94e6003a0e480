#include "runtime/settlement.h"

#include <algorithm>
#include <numeric>

namespace trireme {
namespace {

std::unique_ptr<Communicator> world_of(CommFactory& factory) {
  std::vector<int> ranks(size_t(factory.world()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return factory.split(ranks, "settle");
}

template <class T>
Tensor host_bytes(std::span<T> s) {
  return Tensor(const_cast<std::remove_const_t<T>*>(s.data()), Shape{int64_t(s.size_bytes())}, DType::u8);
}

}  // namespace

Settlement::Settlement(CommFactory& factory, Device& device)
    : world_(world_of(factory)),
      device_(device),
      stream_(device.stream("settle")),
      has_data_(device.has_data()),
      all_limbs_(size_t(factory.world())) {}

// What ended the run has told the group, so what is under way comes to an end.
Settlement::~Settlement() {
  try {
    device_.sync(stream_);
  } catch (const std::exception&) {
    // It is told by whoever caught what ended the run.
  }
}

// The sum is of integers cut by the largest value of all ranks, so that goes first.
void Settlement::post(std::span<const double> numbers, std::span<const double> values) {
  mine_.assign(numbers.begin(), numbers.end());
  mine_.push_back(largest_of(values));
  values_.assign(values.begin(), values.end());
  all_.resize(mine_.size() * size_t(ranks()));
  world_->all_gather({.shard = host_bytes(std::span(mine_)), .full = host_bytes(std::span(all_))}, stream_);
  device_.enqueue(stream_, {.run = &Settlement::cut, .self = this, .arg = 0});
  world_->all_gather({.shard = host_bytes(std::span(&limbs_, 1)), .full = host_bytes(std::span(all_limbs_))},
                     stream_);
  posted_ = device_.record(stream_);
}

void Settlement::cut(void* self, int64_t) {
  auto* s = static_cast<Settlement*>(self);
  s->limbs_ = limbs_of(s->values_, s->largest());
}

double Settlement::largest() const {
  double largest = 0;
  for (size_t i = mine_.size() - 1; i < all_.size(); i += mine_.size()) {
    if (all_[i] == kNonfinite) return kNonfinite;
    largest = std::max(largest, all_[i]);
  }
  return largest;
}

void Settlement::tell(std::span<const std::byte> mine) {
  told_mine_.assign(mine.begin(), mine.end());
  told_.resize(mine.size() * size_t(ranks()));
  world_->all_gather({.shard = host_bytes(std::span(told_mine_)), .full = host_bytes(std::span(told_))},
                     stream_);
  told_at_ = device_.record(stream_);
}

void Settlement::wait() {
  device_.wait(device_.stream("compute"), posted_);
}

std::span<const double> Settlement::numbers(int rank) const {
  return std::span(all_).subspan(size_t(rank) * mine_.size(), mine_.size() - 1);
}

double Settlement::sum() const {
  if (!has_data_) return 0;
  Limbs sum{};
  for (const Limbs& l : all_limbs_)
    for (size_t i = 0; i < l.size(); i++) sum[i] += l[i];
  return sum_of(sum, largest());
}

std::span<const std::byte> Settlement::told() {
  device_.wait(device_.stream("compute"), told_at_);
  return told_;
}

}  // namespace trireme
