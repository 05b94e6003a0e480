// What the program's own kernels reach on a machine inside training steps, as `bench` measured it: seconds of
// an op by its size, seconds of a collective by its bytes. measure/speeds.h prices steps with it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/field.h"

namespace trireme {

// One launch of an op, or one call. rows, cols: of its first output, all dims but the last and the last (of a
// call 1 and 1). work: FLOPs of products and attention, else bytes read and written; of a call its payload.
struct SpeedPoint {
  double rows = 1, cols = 1, work = 0, seconds = 0;
  bool operator==(const SpeedPoint&) const = default;
};
// of: "matmul bf16" (op, compute type) or "all_reduce ordered 2" (collective, algorithm, ranks).
struct SpeedTable {
  std::string of;
  std::vector<SpeedPoint> points;
  bool operator==(const SpeedTable&) const = default;
};

// A table as a line of text, "NAME ROWSxCOLSxWORK=SECONDS ...", and back. wrong: what is wrong with the line,
// "" if nothing.
std::string speed_table_text(const SpeedTable&);
SpeedTable speed_table_of(std::string_view line, std::string& wrong);

// Measured with so many ranks at once, of so many threads each: they share memory and, often, cores.
struct Calibration {
  int64_t ranks = 0, threads = 0;
  double f32 = 0, bf16 = 0, memory_bandwidth = 0;  // the roof at so many threads of one rank
  double between_s = 0;  // of a rank's thread from one op's end to the next one's begin
  // Beyond their own time, what a step takes for each collective beside compute and for each byte of its
  // buffer: its thread must be given a core that computes, and what it writes lies in caches of others.
  double beside_s = 0, beside_s_per_byte = 0;
  // What whole steps took of what their pieces foretell, by what ranks divide; 0 = not measured.
  double step_dp = 0, step_tp = 0, step_cp = 0, step_ep = 0, step_pp = 0;
  Texts ops, calls;  // tables, a line each
  bool operator==(const Calibration&) const = default;
  bool known() const { return ranks > 0 && !ops.empty(); }

  template <class V>
  void visit(V& v) {
    v("ranks", ranks, "", "that ran at once; 0 = not calibrated", between(0, 65536));
    v("threads", threads, "threads", "of each of them", between(0, 65536));
    v("f32", f32, "FLOP/s", "peak in f32 at so many threads; 0 = not known", between(0, 1e21));
    v("bf16", bf16, "FLOP/s", "peak in bf16 at so many threads; 0 = not native", between(0, 1e21));
    v("memory_bandwidth", memory_bandwidth, "bytes/s", "of so many threads; 0 = not known", between(0, 1e18));
    v("between_s", between_s, "s", "from an op's end to the next one's begin", between(0, 1));
    v("beside_s", beside_s, "s", "of a step, for each collective beside compute more than its own time",
      between(0, 1));
    v("beside_s_per_byte", beside_s_per_byte, "s/byte", "likewise for each byte of their buffers",
      between(0, 1e-3));
    v("step_dp", step_dp, "",
      "whole steps of ranks that divide the batch, measured / what their ops and calls add up to; 0 = not "
      "measured",
      between(0, 100));
    v("step_tp", step_tp, "", "the same of ranks that divide layers", between(0, 100));
    v("step_cp", step_cp, "", "the same of ranks that divide sequences", between(0, 100));
    v("step_ep", step_ep, "", "the same of ranks that divide experts", between(0, 100));
    v("step_pp", step_pp, "", "the same of pipelines", between(0, 100));
    v("ops", ops, "", "OP TYPE ROWSxCOLSxWORK=SECONDS ...: of one launch inside a step");
    v("calls", calls, "", "COLLECTIVE ALGORITHM RANKS 1x1xBYTES=SECONDS ...: once its ranks have met");
  }
};

}  // namespace trireme
