// Leaving in good order: signals and leases ask the work to stop, save and go with exit code 3 (DESIGN.md
// section 5).
#pragma once
#include <chrono>
#include <string_view>

namespace trireme {

// SIGTERM, SIGINT, SIGHUP and SIGUSR1 set a flag; a second one of them leaves at once, _exit(3). System calls
// continue after the first. SIGHUP stays ignored if it is ignored at the start (nohup). One that a supervisor
// passes on (sigqueue) and one that came to this process itself are one signal. The flag is the process's, as
// signals are.
void install_interrupt_handlers();
bool interrupt_requested();
int interrupt_signal();    // the signal's number, 0 if none came
void request_interrupt();  // as if a signal had come
void clear_interrupt();    // the next signal is a first one again

// "55m", "90s", "2h", "1.5h", "1d" in seconds. Errors (request) name `key`, the value and what is right.
double parse_duration(std::string_view key, std::string_view text);

// A moment from which on work should stop; never, unless set.
class Deadline {
 public:
  Deadline() = default;
  static Deadline after(double seconds);
  bool passed() const { return seconds_left() <= 0; }
  double seconds_left() const;  // infinite without a deadline

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point at_ = Clock::time_point::max();
};

}  // namespace trireme
