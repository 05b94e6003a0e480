// Do ranks that hold the same still hold the same?
#pragma once
#include <map>
#include <vector>

#include "runtime/stage_runner.h"

namespace trireme {

// Weights and optimizer state of which several ranks keep a copy: replicas of dp, and what ranks of tp do not
// divide (norms, biases behind a sum, key and value heads that are fewer than ranks).
class Replicas {
 public:
  // Ranks tell each other once what they hold: tensor, box and range. On all ranks; the runner outlives this.
  explicit Replicas(const StageRunner&);
  Replicas(const Replicas&) = delete;

  // Compares hashes of 64 bits in one collective of a few bytes a rank: one for each set of ranks with copies
  // of the same, which under dp alone is one set and 8 bytes. On all ranks. A difference is looked for tensor
  // by tensor in a second round, and ends the run with an Error that names rank, tensor and step.
  void compare(int64_t step) const;

  // Weights that each update overwrites, from a master copy or from their owners: a fault in them is gone
  // after the update, but not from the gradients. True if there are any in memory that the processor can
  // read.
  bool overwrites_weights() const;
  // compare() for these weights alone, which must not change meanwhile either. Call it after the gradients
  // and directly before the update.
  void compare_weights(int64_t step) const;

 private:
  struct Piece {
    std::string name;
    Tensor data;
    uint64_t key = 0;          // hash of name, box and range; 0 = nothing
    bool overwritten = false;  // see overwrites_weights()
  };
  enum class Which : uint8_t { all, overwritten };
  void compare(int64_t step, Which) const;
  std::vector<uint64_t> words_of(Which) const;
  using Ranks = std::vector<int>;  // ascending
  std::vector<uint64_t> everyones(const std::vector<uint64_t>& mine) const;
  [[noreturn]] void name_difference(int64_t step) const;
  const Ranks& holders(uint64_t key) const { return sets_[set_of_.at(key)]; }

  const StageRunner& runner_;
  std::vector<Piece> pieces_;               // of this rank, in order of declaration
  std::vector<Ranks> sets_;                 // of two ranks or more that hold the same pieces
  std::map<uint64_t, size_t> set_of_;       // by key: place in sets_; none: one rank alone holds it
  std::vector<std::vector<size_t>> has_;    // by rank: the sets that it is in, ascending
  std::vector<std::vector<size_t>> mine_;   // by set in has_[this rank]: pieces, in order of their keys
  size_t most_sets_ = 0, most_pieces_ = 0;  // of any rank
};

}  // namespace trireme
