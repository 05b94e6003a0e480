// Which of several sources the n-th sample of a mixture comes from, so that every beginning of the run holds
// the sources in the proportions of their weights.
//
// Tijdeman's rule (The chairman assignment problem, Discrete Mathematics 32, 1980): with K sources of shares
// w (sum 1), of those whose deficit n*w - drawn is at least 1/(2K-2), the one whose next sample falls due
// first. Then after any n samples each source has been drawn n*w times to within 1 - 1/(2K-2): less than one
// sample. (The greedy choice of the largest deficit has no such bound.) Shares are whole multiples of 2^-40
// and all arithmetic is of integers, so every machine draws the same.
//
// There is no closed form and no table: the state is one number a source, and a cursor walks it on. Drawing
// in order costs one or two nanoseconds a source; a resume at sample n walks there from 0 (1e8 samples of 4
// sources: half a second) and needs no more than n.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

class Mixture {
 public:
  // Weights from 0 on, not all 0, of any sum; source i is drawn with share weights[i] / sum. A weight of 0 is
  // never drawn, a smaller one than 2^-40 of the sum counts as that.
  explicit Mixture(std::span<const double> weights);

  int64_t sources() const { return int64_t(parts_.size()); }
  double share(int64_t source) const { return double(parts_[size_t(source)]) / double(kWhole); }

  struct Draw {
    int64_t source = 0, index = 0;  // index: how many samples of the source came before
    bool operator==(const Draw&) const = default;
  };
  // Of sample n, from 0; a pure function of n, quick where n rises. Allocates nothing. One thread at a time.
  Draw at(int64_t n);
  // How many of the samples 0 .. n-1 are of each source; valid until the next call.
  std::span<const int64_t> drawn(int64_t n);

 private:
  static constexpr int64_t kWhole = int64_t(1) << 40;
  static constexpr int64_t kEvery = 4096;  // samples between two states that are kept, to go back to
  struct State {
    int64_t n = 0;                 // samples drawn
    std::vector<int64_t> drawn;    // of each source
    std::vector<int64_t> deficit;  // n * part - drawn * kWhole
  };
  void seek(int64_t n);
  void step();

  std::vector<int64_t> parts_;  // of kWhole
  int64_t active_ = 0;          // sources with a part
  int64_t only_ = -1;           // the one, where there is one
  State start_, now_;
  std::array<State, 2> kept_;  // the last two multiples of kEvery
  size_t next_kept_ = 0;
  int64_t last_ = 0;  // source of sample now_.n - 1
};

}  // namespace trireme
