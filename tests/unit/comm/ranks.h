// Ranks, and values to send between them.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "comm/comm_set.h"
#include "comm/options.h"

namespace trireme::testing {

struct Rank {
  int rank;
  Device& device;
  CommFactory& factory;
  std::unique_ptr<Communicator> all;  // the whole world
};

inline std::vector<int> ranks_upto(int n) {
  std::vector<int> r(static_cast<size_t>(n));
  for (int i = 0; i < n; i++) r[size_t(i)] = i;
  return r;
}

// Around a rank's factory: the decorators under test.
using Wrap = std::function<std::unique_ptr<CommFactory>(std::unique_ptr<CommFactory>, Device&, int rank)>;
struct World {
  int ranks = 1;
  CommOptions options;
  Wrap wrap;
  const char* group = "all";  // Rank::all's name
  double grace_s = 1;         // NCCL: after a failure, for calls that all ranks made (a busy machine is slow)
};
// Runs body on the ranks of a world; what each threw, "" = nothing. Ranks are threads (ranks_threads.cc), or
// the processes that mpirun started (tests/mpi): there the body runs once, and only where have_ranks().
std::vector<std::string> run_ranks(const World&, const std::function<void(Rank&)>& body);
bool have_ranks(int n);

// The same where nothing is thrown, with each size of messages that the backend has.
void with_ranks(int n, const CommOptions& options, const std::function<void(Rank&)>& body);
inline void with_ranks(int n, const std::function<void(Rank&)>& body) {
  with_ranks(n, CommOptions(), body);
}

// The body of one rank in either.
std::string run_rank(const World&, int rank, Device&, std::unique_ptr<CommFactory>,
                     const std::function<void(Rank&)>& body);

// The sum of what the front counted is what the backend counted.
inline void expect_moved(const Communicator& c) {
  int64_t wire = 0;
  for (const CommCount& n : c.counts()) wire += n.wire;
  EXPECT_EQ(c.moved_bytes(), wire) << "rank " << c.rank() << " of " << c.size();
}

// A buffer of any type, its elements as doubles.
class Values {
 public:
  Values(DType t, int64_t n) : dtype_(t), bytes_(size_t(n * size_of(t))), n_(n) {}
  Tensor tensor() { return Tensor(bytes_.data(), {n_}, dtype_); }
  Tensor part(int64_t begin, int64_t n) { return tensor().narrow(0, begin, n); }
  int64_t size() const { return n_; }
  double get(int64_t i) const {
    return visit([&](auto* p) { return as_double(p[i]); });
  }
  void set(int64_t i, double x) {
    visit([&](auto* p) {
      using T = std::remove_reference_t<decltype(*p)>;
      if constexpr (std::is_integral_v<T>)
        p[i] = T(int64_t(x));
      else if constexpr (std::is_same_v<T, double>)
        p[i] = x;
      else
        p[i] = T(float(x));
      return 0.0;
    });
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  // Floats of mixed size, integers of some thousands: a function of (seed, i).
  void fill(uint64_t seed) {
    for (int64_t i = 0; i < n_; i++) {
      double x = double(below(seed, uint64_t(i), 20001)) - 10000;
      bool whole = dtype_ == DType::i32 || dtype_ == DType::i64;
      set(i, whole                                         ? x
             : dtype_ == DType::u8 || dtype_ == DType::u16 ? double(below(seed, uint64_t(i), 256))
                                                           : x / 1024);
    }
  }

 private:
  static double as_double(bf16 x) { return float(x); }
  static double as_double(f16 x) { return float(x); }
  template <class T>
  static double as_double(T x) {
    return double(x);
  }
  template <class F>
  double visit(const F& f) const {
    auto* p = const_cast<std::byte*>(bytes_.data());
    switch (dtype_) {
      case DType::f64:
        return f(reinterpret_cast<double*>(p));
      case DType::f32:
        return f(reinterpret_cast<float*>(p));
      case DType::bf16:
        return f(reinterpret_cast<bf16*>(p));
      case DType::f16:
        return f(reinterpret_cast<f16*>(p));
      case DType::i64:
        return f(reinterpret_cast<int64_t*>(p));
      case DType::i32:
        return f(reinterpret_cast<int32_t*>(p));
      case DType::u16:
        return f(reinterpret_cast<uint16_t*>(p));
      case DType::u8:
        return f(reinterpret_cast<uint8_t*>(p));
    }
    return 0;
  }
  DType dtype_;
  std::vector<std::byte> bytes_;
  int64_t n_;
};

// What rank r brings to trial t.
inline Values brought(DType type, int64_t n, int r, uint64_t trial) {
  Values v(type, n);
  v.fill(uint64_t(r) * 1000 + trial);
  return v;
}

inline constexpr DType kAdded[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32};

// What the ordered reduction of the ranks' values must give: the sum in rank order in f32 (f64 for f64,
// integers exactly), rounded once.
inline double reduced(DType t, Reduce op, const std::vector<double>& x) {
  if (op == Reduce::max) return *std::max_element(x.begin(), x.end());
  if (t == DType::f64 || t == DType::i64 || t == DType::i32) {
    double s = x[0];
    for (size_t r = 1; r < x.size(); r++) s += x[r];
    return s;
  }
  float s = float(x[0]);
  for (size_t r = 1; r < x.size(); r++) s += float(x[r]);
  return t == DType::f32 ? double(s) : t == DType::bf16 ? double(float(bf16(s))) : double(float(f16(s)));
}

}  // namespace trireme::testing
