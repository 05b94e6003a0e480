// Optimizer state that waits in the host's memory or a file and is updated piece by piece (after
// ZeRO-Infinity, Rajbhandari et al. 2021, arXiv 2104.07857): while one piece is updated the next is read, and
// the one before is written back.
#pragma once
#include <array>
#include <memory>
#include <optional>

#include "runtime/offload.h"
#include "tensor/arena.h"
#include "tensor/flat_state.h"

namespace trireme {

// Of a rank's own parts of all units. The store is laid out as FlatState's buffers are, one kind behind the
// other, so home() of a kind is such a buffer for whoever reads or writes state between steps.
class StateOffload {
 public:
  static constexpr size_t kBuffers = 3;
  // kinds: f32 tensors of state. A piece takes at most `buffer_bytes`, or a block of 4,096 elements.
  // flat: says what part of a unit is this rank's. Everything given outlives this.
  StateOffload(const OffloadTo&, Device&, Arena&, const ParamSet&, const FlatState& flat, size_t kinds,
               int64_t buffer_bytes);
  StateOffload(const StateOffload&) = delete;
  ~StateOffload();  // when nothing is under way

  Tensor home(size_t kind) const;  // f32 [set.part], in the host's memory: no op reads or writes it
  void zero();                     // all of it; between steps
  int64_t host_bytes() const { return store_->host_bytes(); }

  // A piece of a unit, in memory: elements of the rank's part, and f32 [own.size()] by kind.
  struct InMemory {
    Range own;
    std::span<const Tensor> kinds;
  };
  // The next one of this unit, until updated(); none: that was the last. Units in the order of the set.
  std::optional<InMemory> next(size_t unit);
  void updated();
  void passed();  // in place of updated(): it was only read
  void settle();  // all is written, and the buffers are given back

 private:
  struct Piece {
    size_t unit = 0;
    Range own;       // of the rank's part of the unit
    int64_t at = 0;  // elements from the start of a kind
  };
  struct Buffer {
    Owned memory;  // f32 [kinds, elements]
    Event here, gone;
  };
  void fetch(size_t piece);
  void release(Buffer&);

  Device& device_;
  Arena& arena_;
  Stream compute_;
  size_t kinds_;
  int64_t part_;
  std::vector<Piece> pieces_;
  size_t next_ = 0;  // to be updated
  std::array<Buffer, kBuffers> buffers_;
  std::vector<Tensor> in_memory_;  // by kind, of the piece that is updated
  std::unique_ptr<OffloadStore> store_;
};

}  // namespace trireme
