#include "base/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace trireme {
namespace {

std::atomic<bool> requested{false};
std::atomic<int> signal_number{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may touch only lock-free atomics");

std::atomic<int> direct{0}, passed_on{0};  // signals that came

// Said with write(), which a handler may call. If even that fails, the exit code tells it.
constexpr char kFirst[] =
    "\ntrireme: stops in good order, which may take a while; a second signal leaves at once\n";
bool on_terminal = false;  // elsewhere every rank would say it
constexpr char kSecond[] = "trireme: a second signal: leaves at once; what was not saved yet is lost\n";

// A scheduler or a terminal may send a signal to a supervisor and to this process, and the supervisor passes
// its own on, by sigqueue(): these two are one.
void on_signal(int number, siginfo_t* info, void*) {
  std::atomic<int>& way = info && info->si_code == SI_QUEUE ? passed_on : direct;
  if (way.fetch_add(1) > 0) {
    [[maybe_unused]] const ssize_t said = write(STDERR_FILENO, kSecond, sizeof kSecond - 1);
    _exit(int(Fault::interrupted));
  }
  if (requested.exchange(true)) return;
  signal_number = number;
  if (on_terminal) {
    [[maybe_unused]] const ssize_t said = write(STDERR_FILENO, kFirst, sizeof kFirst - 1);
  }
}

}  // namespace

void install_interrupt_handlers() {
  on_terminal = isatty(STDERR_FILENO) == 1;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;  // a write of a checkpoint goes on
  for (int s : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    struct sigaction before {};
    if (s == SIGHUP && sigaction(s, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    if (sigaction(s, &action, nullptr) != 0) run_failed("cannot handle signal {}", s);
  }
}

bool interrupt_requested() {
  return requested;
}
int interrupt_signal() {
  return signal_number;
}
void request_interrupt() {
  requested = true, direct++;
}
void clear_interrupt() {
  requested = false, signal_number = 0, direct = 0, passed_on = 0;
}

double parse_duration(std::string_view key, std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, size_t(text.data() + text.size() - end));
  const double scale = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : unit == "d" ? 86400 : 0;
  if (error != std::errc() || !std::isfinite(number) || number < 0 || scale == 0) {
    bad_request("{} = \"{}\": write a number and a unit as 55m (s, m, h or d)", key, text);
  }
  return number * scale;
}

Deadline Deadline::after(double seconds) {
  Deadline d;
  // A century is never; beyond it the clock's 64 bits of nanoseconds could overflow.
  if (seconds < 100 * 365.25 * 86400) {
    d.at_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  return d;
}

double Deadline::seconds_left() const {
  if (at_ == Clock::time_point::max()) return std::numeric_limits<double>::infinity();
  return std::chrono::duration<double>(at_ - Clock::now()).count();
}

}  // namespace trireme
