// A layout's memory in trireme's own runs: what its layers keep and need by their tapes (layer_bytes.h), at
// the moments that its programs have (memory_moments.h). docs/search.md, "Memory".
#pragma once
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "forecast/search_layout.h"
#include "spec/run_spec.h"

namespace trireme {

// Several kinds of devices: the number of each pipeline rank's kind (interned), and the bytes of memory by
// number beyond the least. Then the most loaded rank is the one with the least memory left. Null devices are
// all alike.
struct RankRoom {
  const NumberList* devices = nullptr;
  std::vector<double> more;
  double of(int64_t device) const { return devices ? more[size_t(device)] : 0; }
};

// Layouts one after another; what neighbours have in common is found once.
class RankBytes {
 public:
  // run: what the layouts are of, with resolve()able precision. cut: as LayoutSpec::cut.
  RankBytes(RunSpec run, std::string_view cut);
  ~RankBytes();
  // Memory of the most loaded rank. base: StepMemory::base.
  StepMemory of(const SearchLayout&, double base, const RankRoom& = {});
  // At most that memory, at once: states, and the layers that microbatches hold. If states alone are more
  // than `enough`, these may do, which need no tapes of the layout's own.
  StepMemory least(const SearchLayout&, double base, double enough = INFINITY, const RankRoom& = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
