// Threads kept to cores of their own.
#pragma once
#include <sched.h>

namespace trireme {

// While it lives the calling thread, and every thread that it starts meanwhile, runs on `each` of the cores
// that it might run on before: those from part x each on. Does nothing where these are not parts x each in
// all: with cores to spare the system places threads better, and with too few nobody has cores of their own.
//
// Without it the system may put a thread that wakes beside another part's busy one, and for milliseconds
// nobody moves it to the idle core that it left.
class OwnCores {
 public:
  OwnCores(int part, int parts, int each);  // part: from 0
  ~OwnCores();
  OwnCores(const OwnCores&) = delete;
  OwnCores& operator=(const OwnCores&) = delete;

 private:
  cpu_set_t before_;
  bool kept_ = false;
};

}  // namespace trireme
