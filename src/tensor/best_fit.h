// Where blocks lie in a range: best fit, lowest address first, neighbours merged. A pure function of what was
// asked for, so it can be asked again without what asked (runtime/short_booking.h).
#pragma once
#include <cstdint>
#include <vector>

namespace trireme {

class BestFit {
 public:
  explicit BestFit(int64_t capacity);
  int64_t place(int64_t size);  // its begin; -1: there is no room
  void give_back(int64_t begin, int64_t size);

  int64_t high_water() const { return high_water_; }  // end of the highest block ever placed
  int64_t capacity() const { return capacity_; }

 private:
  struct Hole {
    int64_t begin, size;
  };
  int64_t capacity_, high_water_ = 0;
  std::vector<Hole>
      holes_;  // sorted by begin, never adjacent; capacity is kept, so steady steps allocate nothing
};

}  // namespace trireme
