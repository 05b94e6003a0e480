#include "model/row_plan.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace trireme {

RowPlan::RowPlan(std::vector<int64_t> counts, int ranks, int rank, int64_t capacity)
    : counts_(std::move(counts)),
      ranks_(ranks),
      rank_(rank),
      experts_(int64_t(counts_.size()) / ranks),
      own_(experts_ / ranks),
      capacity_(capacity),
      segments_(size_t(ranks_ * ranks_)),
      before_(size_t(ranks_ * ranks_)) {
  require(capacity > 0 && own_ * ranks_ * ranks_ == int64_t(counts_.size()),
          "ep divides the experts, and receive buffers have room");
  for (int64_t from = 0; from < ranks_; from++)
    for (int64_t e = 0; e < experts_; e++) segments_[size_t(from * ranks_ + e / own_)] += count(from, e);
  for (int64_t owner = 0; owner < ranks_; owner++) {
    int64_t line = 0;
    for (int64_t from = 0; from < ranks_; from++) {
      before_[size_t(from * ranks_ + owner)] = line;
      line += segment(from, owner);
    }
    rounds_ = std::max(rounds_, (line + capacity_ - 1) / capacity_);
  }
}

std::vector<int64_t> RowPlan::balanced(int64_t rows, int ranks, int64_t experts) {
  std::vector<int64_t> counts;
  counts.reserve(size_t(ranks * experts));
  for (int64_t e = 0; e < experts; e++) counts.push_back((e + 1) * rows / experts - e * rows / experts);
  for (int64_t from = 1; from < ranks; from++)
    counts.insert(counts.end(), counts.begin(), counts.begin() + experts);
  return counts;
}

RowPlan::Piece RowPlan::piece(int64_t t, int64_t from, int64_t owner) const {
  const int64_t before = before_[size_t(from * ranks_ + owner)], rows = segment(from, owner);
  return {std::clamp<int64_t>(t * capacity_ - before, 0, rows),
          std::clamp<int64_t>((t + 1) * capacity_ - before, 0, rows)};
}

int64_t RowPlan::sent() const {
  int64_t rows = 0;
  for (int64_t e = 0; e < experts_; e++) rows += count(rank_, e);
  return rows;
}
int64_t RowPlan::received() const {
  int64_t rows = 0;
  for (int64_t from = 0; from < ranks_; from++) rows += segment(from, rank_);
  return rows;
}
int64_t RowPlan::Round::sent() const {
  return std::accumulate(send.begin(), send.end(), int64_t(0));
}
int64_t RowPlan::Round::received() const {
  return std::accumulate(receive.begin(), receive.end(), int64_t(0));
}

int64_t RowPlan::Round::computed() const {
  std::vector<char> given(static_cast<size_t>(received()));
  for (int32_t i = offsets.front(); i < offsets.back(); i++) {
    const int32_t row = order.at(size_t(i));
    if (row >= 0 && row < int32_t(given.size())) given[size_t(row)] = 1;
  }
  return std::count(given.begin(), given.end(), 1);
}

RowPlan::Round RowPlan::round(int64_t t, bool with_rows) const {
  Round r;
  for (int64_t peer = 0; peer < ranks_; peer++) {
    for (int64_t earlier = 0; earlier < t; earlier++) r.first += piece(earlier, rank_, peer).size();
    r.send.push_back(piece(t, rank_, peer).size());
    r.receive.push_back(piece(t, peer, rank_).size());
  }
  r.offsets = {0};
  std::vector<Piece> pieces;
  for (int64_t from = 0; from < ranks_; from++) pieces.push_back(piece(t, from, rank_));
  std::vector<int64_t> begins(size_t(ranks_), 0);  // the expert's first row in each rank's segment
  int64_t filled = 0;
  for (int64_t e = rank_ * own_; e < (rank_ + 1) * own_; e++) {
    int64_t arrived = 0;  // rows of the ranks before
    for (int64_t from = 0; from < ranks_; from++) {
      int64_t& begin = begins[size_t(from)];
      const Piece& p = pieces[size_t(from)];
      const int64_t end = begin + count(from, e);
      const int64_t first = std::max(begin, p.begin), last = std::min(end, p.end);
      for (int64_t i = first; with_rows && i < last; i++) r.order.push_back(int32_t(arrived + i - p.begin));
      filled += std::max<int64_t>(0, last - first);
      arrived += p.size();
      begin = end;
    }
    r.offsets.push_back(int32_t(filled));
  }
  r.rows = capacity_;
  if (!with_rows) return r;
  r.order.resize(size_t(capacity_), -1);
  r.back.assign(size_t(capacity_), -1);
  for (size_t i = 0; i < r.order.size(); i++)
    if (r.order[i] >= 0) r.back[size_t(r.order[i])] = int32_t(i);
  return r;
}

std::vector<int32_t> RowPlan::sending() const {
  std::vector<int32_t> to(static_cast<size_t>(sent()));
  int32_t next = 0;
  for (int64_t t = 0; t < rounds_; t++) {
    int64_t segment_begin = 0;
    for (int64_t owner = 0; owner < ranks_; owner++) {
      const Piece p = piece(t, rank_, owner);
      for (int64_t i = p.begin; i < p.end; i++) to[size_t(segment_begin + i)] = next++;
      segment_begin += segment(rank_, owner);
    }
  }
  return to;
}

}  // namespace trireme
