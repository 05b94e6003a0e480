// Times of single ops inside real steps, by places on the compute stream (stamps.h): the host waits for none
// of them. Written as a text table and as JSON lines (bench/README.md).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/kernels.h"
#include "device/stamps.h"

namespace trireme {

// Peak rates of the device; 0 = unknown.
struct OpPeaks {
  double flops = 0;        // FLOP/s of the compute type
  double fp8_flops = 0;    // FLOP/s of 8-bit products
  double bytes_per_s = 0;  // rate of the device's memory
  std::string source;      // where they are from
};

// Ops of one name, output shape, kernel and cost. Per step.
struct OpRow {
  std::string op, shape, kernel;
  double count = 0, seconds = 0;
  double flops = 0;  // sum over `count` launches
  double bytes = 0;
  double tflops() const { return seconds > 0 ? flops / seconds * 1e-12 : 0; }
  double gb_per_s() const { return seconds > 0 ? bytes / seconds * 1e-9 : 0; }
};
struct OpTable {
  int steps = 0;
  double wall_s = 0;        // per step, by the host's clock
  double ops_s = 0;         // per step, inside ops
  std::vector<OpRow> rows;  // longest first
  // Time outside ops: copies, collectives, late launches, waits for the host.
  double gap_s() const { return wall_s - ops_s; }
};

// An observer of a device's kernels: `stamps` are the device's own. Between begin_step and end_step every op
// has two places, so its time holds neither what the device waited before it nor copies and collectives
// around it. Places take about a microsecond each on a GPU.
class OpTimes final : public OpObserver {
 public:
  OpTimes(Kernels& kernels, std::unique_ptr<Stamps> stamps) : kernels_(kernels), stamps_(std::move(stamps)) {}

  void begin_step();
  void end_step(double wall_s);  // wall_s: what the step took by the host's clock
  OpTable table();               // reads the places, which waits for the last; once

  void before(std::string_view op) override;
  void after(std::string_view op, const Cost&, const Outputs&) override;

 private:
  struct Kind {
    std::string op, shape, kernel;
    double flops = 0;
    int64_t bytes = 0;
    auto operator<=>(const Kind&) const = default;
  };
  Kernels& kernels_;
  std::unique_ptr<Stamps> stamps_;
  std::map<Kind, size_t> kinds_;
  std::vector<size_t> ops_;  // kind of each op; its places are 2 i and 2 i + 1
  bool on_ = false;
  int steps_ = 0;
  double wall_s_ = 0;
};

// Share of the roofline that a row reaches, and what bounds it there: "flops" or "bytes". 0, "": no peaks.
struct OfPeak {
  double share = 0;
  std::string bound;
};
OfPeak of_peak(const OpRow&, const OpPeaks&);

// A header line, a line per row, and the sum of the ops next to the step.
std::string to_text(const OpTable&, const OpPeaks&);
// {"kind":"step",...} and a {"kind":"op",...} per row, each on a line. attention: the run's choice of
// kernels.
std::string to_json_lines(const OpTable&, const OpPeaks&, std::string_view device,
                          std::string_view attention);

}  // namespace trireme
