// Times of places on a device's compute stream, read after all of them have passed.
#pragma once
#include <memory>
#include <vector>

namespace trireme {

// Thread-compatible: used by the rank's own thread.
class Stamps {
 public:
  virtual ~Stamps() = default;
  // Marks a place after everything that was issued on compute so far. Does not wait.
  virtual void put() = 0;
  // Waits for the last place. Returns seconds from the first place to each, and forgets all places.
  virtual std::vector<double> read() = 0;
};

// Places are passed as they are put: for devices whose compute stream is the rank's own thread.
std::unique_ptr<Stamps> make_clock_stamps();

}  // namespace trireme
