// What a cluster file states of collectives, for forms that price many layouts: collective_time.h with the
// lines of each group kept.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "cost/collective_time.h"
#include "cost/device_curves.h"

namespace trireme {

// Not for several threads at once: a call keeps what it finds.
class StatedLinks {
 public:
  explicit StatedLinks(ClusterSpec);
  // Returns the seconds of the fastest way among `ranks` ranks that are `stride` world ranks apart. `bytes`
  // as in collective_time.h. A group of one takes 0.
  double seconds(CollectiveKind, double bytes, int64_t ranks, int64_t stride) const;
  // Returns the same cluster with its links in the node `near` times and those above it `far` times as fast.
  std::shared_ptr<const StatedLinks> scaled(double near, double far) const;

 private:
  struct Kept {
    int64_t ranks = 0, stride = 0;
    CollectiveKind kind = CollectiveKind::p2p;
    std::vector<CollectiveLine> lines;
  };
  ClusterSpec cluster_;
  mutable std::vector<Kept> kept_;
};

// Sets a bandwidth of the figures, and with it the links' own.
void set_near(DeviceFigures&, double bus);
void set_far(DeviceFigures&, double nic);

}  // namespace trireme
