// Reads one measured run of a file (score_rows.h). Internal to score_rows.cc and score_settings.cc.
#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "published/score_fields.h"
#include "published/score_rows.h"

namespace trireme {

// Throws WrongField for a key that no row has, and names the nearest that one may have.
void check_keys(const RowJson& row, std::string_view where);

inline constexpr int64_t kMostDegree = 1 << 24;

// Raised inside the reading of one row: it cannot be forecast, for this reason.
struct Unusable {
  std::string why;
};
template <class... A>
[[noreturn]] void unusable(fmt::format_string<A...> f, A&&... a) {
  throw Unusable{fmt::format(f, std::forward<A>(a)...)};
}

// Reads one row step by step; each step may find it unusable.
class RowReader {
 public:
  RowReader(const RowFields& f, const Catalog& c, MeasuredRow& row) : f_(f), c_(c), row_(row) {}
  void read();

 private:
  void read_memory();
  void read_cluster();
  void read_network();
  void read_kernels();
  void read_types();
  void read_model();
  void read_source();
  void read_layout();
  void read_batch();
  void read_precision();
  void read_recompute();
  void read_time();
  void spread_over_missing();
  bool has_room(const StepCase&) const;
  bool counts_unknown() const;
  void check_room();
  double convention_flops() const;
  double first_products(bool out) const;
  double convention_passes(double forward, double blocks) const;
  void solve_layers();
  void check_truth();

  const RowFields& f_;
  const Catalog& c_;
  MeasuredRow& row_;
  const SourceRule* rule_ = nullptr;
  const UnmeasuredDevice* unmeasured_ = nullptr;
  StepCase s_;
  bool layers_missing_ = false;
  int64_t gpus_ = 0, global_ = 0;
  bool chunks_missing_ = false, micro_missing_ = false, recompute_missing_ = false;
  bool never_full_ = false;  // where recompute is missing
  bool gradients_missing_ = false;
  double peak_ = 0;  // of the row's precision
};

}  // namespace trireme
