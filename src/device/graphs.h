// Launches that a device can keep and put on its compute stream all at once (CUDA graphs).
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace trireme {

class Graph {
 public:
  virtual ~Graph() = default;
  virtual void
  launch() = 0;  // on the compute stream, as if each were launched now, with the arguments of then
};

// On the rank's thread.
class GraphMaker {
 public:
  virtual ~GraphMaker() = default;
  // What is launched on the compute stream from here to end() is kept and does not run. Nothing else may be
  // asked of the device meanwhile.
  virtual void begin() = 0;
  virtual std::unique_ptr<Graph> end() = 0;
  // In place of end(), after an error: the stream takes launches again.
  virtual void abandon() noexcept = 0;
};

// What came of a device's actions (replay.h), as they ran last.
struct ReplayCounts {
  int64_t launches = 0;  // ops in actions
  int64_t replayed = 0;  // of them by graphs
  int64_t graphs = 0;    // kept
  int64_t made = 0;      // since the device is there
  int64_t given_up = 0;  // actions whose ops are others each time
  std::string left_out;  // "adamw 2, dropout 4": ops whose arguments differ from step to step; "" = none
  std::string refused;   // why the device makes no more; "" = it does
};
// One line for a log.
std::string replay_text(const ReplayCounts&);
// How a run ends whose train.graphs = "on" and whose device refuses them.
std::string graphs_refused(const ReplayCounts&);

}  // namespace trireme
