#include "comm/mpi/beats.h"

#include <array>
#include <vector>

namespace trireme::mpi {
namespace {

class Board final : public BeatBoard {
 public:
  explicit Board(MPI_Comm ranks) : ranks_(ranks) {
    int size = 1;
    check(MPI_Comm_rank(ranks, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(ranks, &size), "MPI_Comm_size");
    all_.resize(size_t(size));
    for (int r = 0; r < size; r++) all_[size_t(r)].rank = r;
    outs_[0].to = 0, outs_[1].to = size - 1;
  }
  ~Board() override {  // what has not left by now finds nobody who waits for it
    for (Out& o : outs_)
      if (o.request != MPI_REQUEST_NULL) MPI_Request_free(&o.request), o.beat.release();
  }

  void exchange(std::span<const Beat> mine) override {
    for (const Beat& b : mine) {
      all_[size_t(b.rank)] = b;
      for (Out& o : outs_) send(o, b);
    }
    if (judges()) receive();
  }
  std::span<const Beat> all() const override { return all_; }
  bool judges() const override { return rank_ == 0 || rank_ == outs_[1].to; }
  bool says(const Verdict& v) const override { return rank_ == 0 || (v.rank == 0 && v.fate == Fate::dead); }

 private:
  struct Out {
    int to = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    std::unique_ptr<Beat> beat = std::make_unique<Beat>();  // MPI's until it has left
  };
  static constexpr int kTag = 0;

  void send(Out& o, const Beat& b) {
    if (o.to == rank_ || (&o == &outs_[1] && o.to == outs_[0].to)) return;
    int left = 1;
    if (o.request != MPI_REQUEST_NULL) check(MPI_Test(&o.request, &left, MPI_STATUS_IGNORE), "MPI_Test");
    if (!left) return;
    *o.beat = b;
    check(MPI_Isend(o.beat.get(), int(sizeof(Beat)), MPI_BYTE, o.to, kTag, ranks_, &o.request), "MPI_Isend");
  }
  // A message that is seen is there: beats are small enough to be sent whole at once.
  void receive() {
    for (int there = 1; there;) {
      MPI_Status status;
      check(MPI_Iprobe(MPI_ANY_SOURCE, kTag, ranks_, &there, &status), "MPI_Iprobe");
      if (there)
        check(MPI_Recv(&all_[size_t(status.MPI_SOURCE)], int(sizeof(Beat)), MPI_BYTE, status.MPI_SOURCE, kTag,
                       ranks_, MPI_STATUS_IGNORE),
              "MPI_Recv");
    }
  }

  MPI_Comm ranks_;
  int rank_ = 0;
  std::array<Out, 2> outs_;
  std::vector<Beat> all_;
};

}  // namespace

std::unique_ptr<BeatBoard> make_board(MPI_Comm ranks) {
  return std::make_unique<Board>(ranks);
}

}  // namespace trireme::mpi
