// Handles of a device's queues; kept apart so that device and comm can be siblings.
#pragma once

namespace trireme {
struct Stream {
  int id = 0;  // 0 is the compute stream: on CPU the rank's own thread, inline
};
struct Event {
  int id = 0;
};
}  // namespace trireme
