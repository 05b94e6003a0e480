// Which rank of a shard group orthogonalises which hidden matrix of a unit, and what travels: pure integers.
//
// A unit's elements are divided among the ranks in equal ranges, so a matrix lies in pieces on several. Each
// matrix has one owner: matrices by falling FLOPs, each to the rank with the least so far, of equal ones the
// lowest. Pieces go to the owner and back as two all_to_alls:
//   on the way there  a rank sends, owner by owner, its pieces of that owner's matrices, in their order;
//   at the owner      they arrive rank by rank, each rank's pieces in the order of the owner's matrices.
//
// Where tp divides a matrix, the owner in the shard group has its rank's box of it whole, and so have the
// same owners at the other ranks of tp: boxes are alike. One of these ranks puts the matrix together, found
// as above among the owner's matrices; boxes travel as pieces do. What all ranks of tp hold alike is
// orthogonalised by each.
#pragma once
#include <vector>

#include "optim/newton_schulz.h"
#include "tensor/param.h"

namespace trireme {

struct OwnedMatrix {
  size_t param = 0;  // of the set
  int owner = 0;     // in the shard group
};
// Of a unit's hidden matrices, in the order of its parameters.
std::vector<OwnedMatrix> matrix_owners(const ParamSet&, const Unit&, int shards);

// Elements of a matrix that one rank has.
struct MatrixPiece {
  size_t param = 0;
  Range of_matrix;  // elements of the matrix
  int64_t own = 0;  // where they begin in the rank's own part of the unit,
  int64_t at = 0;   // and in the buffer that travels
};

// What a unit's update takes on one rank of the group.
struct MatrixPlan {
  std::vector<MatrixPiece> mine;   // this rank's, in the order that they are sent in
  std::vector<MatrixPiece> owned;  // everybody's of this rank's matrices, as they arrive (own unused)
  std::vector<size_t> matrices;    // owned by this rank: parameters
  std::vector<int64_t> to_owner, from_rank;  // elements, by rank of the group
  // Of any rank of the group, so that all of them take the same memory.
  int64_t most_sent = 0, most_received = 0;
  NewtonSchulz::Sizes largest;  // of whole matrices
  int64_t sent() const;
  int64_t received() const;
};
MatrixPlan plan_matrices(const ParamSet&, const Unit&, const ShardPlace&);

// Of a matrix that this rank owns in its shard group: its box, on the way to the rank of tp that puts it
// together.
struct MatrixBox {
  size_t param = 0;
  int dim = 0;          // that tp divides
  int64_t at = 0;       // where the box begins in the buffer that travels,
  int64_t of_rank = 0;  // and at the matrix's owner, among those of one rank
  int owner = 0;        // along tp
};
struct DividedPlan {
  std::vector<MatrixBox> boxes;  // in the order that they are sent in
  std::vector<int64_t> to_owner, from_rank;
  int64_t most_sent = 0, most_received = 0;     // of any rank of the shard group and of tp
  const MatrixBox* box_of(size_t param) const;  // null: tp does not divide it, or another has it
};
DividedPlan plan_divided(const ParamSet&, const Unit&, const ShardPlace&, const AxisPlace& tp);

}  // namespace trireme
