#include "runtime/state_offload.h"

#include <algorithm>
#include <cstring>

#include "base/rounding.h"

namespace trireme {
namespace {

constexpr int64_t kBlock = 4096;  // elements: a piece is whole blocks of them
constexpr int64_t kElement = sizeof(float);

int64_t elements_of_a_piece(int64_t buffer_bytes, size_t kinds) {
  return std::max<int64_t>(1, buffer_bytes / (int64_t(kinds) * kElement) / kBlock) * kBlock;
}

}  // namespace

StateOffload::StateOffload(const OffloadTo& to, Device& device, Arena& arena, const ParamSet& set,
                           const FlatState& flat, size_t kinds, int64_t buffer_bytes)
    : device_(device),
      arena_(arena),
      compute_(device.stream("compute")),
      kinds_(kinds),
      part_(set.part),
      in_memory_(kinds) {
  const int64_t most = elements_of_a_piece(buffer_bytes, kinds);
  for (size_t u = 0; u < set.units.size(); u++) {
    const Unit& unit = set.units[u];
    const int64_t own = own_part(unit, flat.place_of(unit)).size();
    for (int64_t begin = 0; begin < own; begin += most)
      pieces_.push_back(
          {.unit = u, .own = {begin, std::min(own, begin + most)}, .at = unit.part_offset + begin});
  }
  const int64_t jobs = int64_t(kBuffers * kinds_);
  store_ = std::make_unique<OffloadStore>(to, device, jobs, int64_t(kinds_) * part_ * kElement);
  store_->map();
}

StateOffload::~StateOffload() {
  store_.reset();  // before the memory that it reads and writes
}

Tensor StateOffload::home(size_t kind) const {
  return Tensor(store_->map() + int64_t(kind) * part_ * kElement, {part_}, DType::f32);
}

// The memory goes back when what was written of it is written: a place of the program.
void StateOffload::release(Buffer& b) {
  if (!b.memory) return;
  device_.wait(compute_, b.gone);
  b.memory.reset();
}

void StateOffload::fetch(size_t piece) {
  if (piece >= pieces_.size()) return;
  const Piece& p = pieces_[piece];
  const size_t slot = piece % kBuffers;
  Buffer& b = buffers_[slot];
  release(b);
  b.memory = Owned(arena_, Bucket::optimizer, {int64_t(kinds_), p.own.size()}, DType::f32);
  for (size_t k = 0; k < kinds_; k++)
    b.here = store_->get(int64_t(slot * kinds_ + k), (int64_t(k) * part_ + p.at) * kElement,
                         b.memory->narrow(0, int64_t(k), 1));
}

std::optional<StateOffload::InMemory> StateOffload::next(size_t unit) {
  if (next_ == pieces_.size() || pieces_[next_].unit != unit) return {};
  if (next_ == 0) fetch(0);
  fetch(next_ + 1);
  const Range own = pieces_[next_].own;
  const Buffer& b = buffers_[next_ % kBuffers];
  device_.wait(compute_, b.here);
  for (size_t k = 0; k < kinds_; k++) in_memory_[k] = b.memory->narrow(0, int64_t(k), 1).view({own.size()});
  return InMemory{own, in_memory_};
}

void StateOffload::updated() {
  const size_t slot = next_ % kBuffers;
  for (size_t k = 0; k < kinds_; k++)
    buffers_[slot].gone = store_->put(int64_t(slot * kinds_ + k),
                                      (int64_t(k) * part_ + pieces_[next_].at) * kElement, in_memory_[k]);
  next_++;
}

void StateOffload::passed() {
  buffers_[next_ % kBuffers].gone = Event();
  next_++;
}

void StateOffload::zero() {
  if (device_.has_data()) std::memset(store_->map(), 0, kinds_ * size_t(part_ * kElement));
}

void StateOffload::settle() {
  require(next_ == pieces_.size(), "an update left pieces of the state out");
  next_ = 0;
  for (Buffer& b : buffers_) release(b);
}

}  // namespace trireme
