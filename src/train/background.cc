#include "train/background.h"

#include <system_error>
#include <utility>

#include "base/no_signals.h"
#include "base/own_faults.h"

namespace trireme {

void Background::start(std::function<void()> task) {
  require(!busy(), "a task in the background is started while another is under way");
  done_ = false;
  error_.clear(), fault_ = Fault::run;
  NoSignals blocked;  // they are the main thread's
  try {
    thread_ = std::thread([this, task = std::move(task)] {
      take_own_faults();
      try {
        task();
      } catch (const Error& e) {
        error_ = e.what();
        fault_ = e.fault;
      } catch (const std::exception& e) {
        error_ = e.what();
      }
      done_.store(true, std::memory_order_release);
    });
  } catch (const std::system_error& e) {
    done_ = true;
    environment_failed("the system gives no thread for a save: {}", e.what());
  }
}

std::string Background::wait() {
  if (thread_.joinable()) thread_.join();
  return std::exchange(error_, {});
}

}  // namespace trireme
