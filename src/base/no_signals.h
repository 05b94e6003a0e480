// Signals are the main thread's: a thread takes over what is blocked where it is made.
#pragma once
#include <pthread.h>
#include <signal.h>

namespace trireme {

// While it lives, the calling thread takes no signals, nor do threads that it starts.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  NoSignals(const NoSignals&) = delete;
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace trireme
