// Signals of a thread's own faults.
#pragma once
#include <pthread.h>
#include <signal.h>

namespace trireme {

// Lets the calling thread take SIGBUS and its like, which NoSignals blocks. If a fault's signal is blocked in
// its thread, the system ends the process without calling a handler (mapping_table.h).
inline void take_own_faults() {
  sigset_t faults;
  sigemptyset(&faults);
  for (int s : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigaddset(&faults, s);
  pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
}

}  // namespace trireme
