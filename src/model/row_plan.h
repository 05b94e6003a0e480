// Which rows travel in an exchange between the ranks of ep, and where they lie when they have come: integers
// alone, the same on every rank that knows how many rows each has for each expert.
//
// Ranks of ep hold experts in equal parts, in rank order. A rank's rows lie expert behind expert, so those
// for one owner are one segment, and an owner's rows are the segments of all ranks, in rank order: a line of
// rows. An owner has room for `capacity` rows at once. Round t moves rows [t capacity, (t + 1) capacity) of
// every owner's line; one round suffices unless an owner's line is longer. Nothing is dropped.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

class RowPlan {
 public:
  // counts [ranks, experts]: rows that each rank has for each expert.
  RowPlan(std::vector<int64_t> counts, int ranks, int rank, int64_t capacity);
  // As balanced as whole rows are: what is assumed where there is no data.
  static std::vector<int64_t> balanced(int64_t rows, int ranks, int64_t experts);

  int64_t rounds() const { return rounds_; }
  int64_t sent() const;      // rows of this rank, to all owners
  int64_t received() const;  // rows of all ranks for this rank's experts

  struct Round {
    int64_t first = 0;  // this rank's rows in the order of sending: those of the round begin here
    std::vector<int64_t> send, receive;  // rows, by rank of ep
    // Received rows by expert: row i of them is row order[i] as received (-1 = none); back is the inverse;
    // offsets of this rank's experts.
    std::vector<int32_t> order, back, offsets;
    int64_t rows = 0;  // length of `order` and `back`
    int64_t sent() const;
    int64_t received() const;
    // Received rows that experts are given by these tables: each once, whatever its rank was told.
    int64_t computed() const;
  };
  // with_rows: else `order` and `back` are empty, for a device without data.
  Round round(int64_t t, bool with_rows = true) const;

  // Rows are sent round behind round: the row at place i in the order of experts goes out as row
  // sending()[i].
  std::vector<int32_t> sending() const;

 private:
  int64_t count(int64_t from, int64_t expert) const { return counts_[size_t(from * experts_ + expert)]; }
  int64_t segment(int64_t from, int64_t owner) const { return segments_[size_t(from * ranks_ + owner)]; }
  struct Piece {
    int64_t begin, end;  // of the segment
    int64_t size() const { return end - begin; }
  };
  Piece piece(int64_t t, int64_t from, int64_t owner) const;

  std::vector<int64_t> counts_;
  int64_t ranks_, rank_, experts_, own_, capacity_;
  std::vector<int64_t> segments_;  // [from, owner]: rows
  std::vector<int64_t> before_;    // [from, owner]: where the segment begins in the owner's line
  int64_t rounds_ = 1;
};

}  // namespace trireme
