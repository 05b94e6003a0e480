#include "device/stamps.h"

#include <chrono>

#include "device/device.h"

namespace trireme {
namespace {

class ClockStamps final : public Stamps {
 public:
  void put() override { at_.push_back(Clock::now()); }
  std::vector<double> read() override {
    std::vector<double> seconds;
    for (const Clock::time_point& t : at_)
      seconds.push_back(std::chrono::duration<double>(t - at_.front()).count());
    at_.clear();
    return seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> at_;
};

}  // namespace

std::unique_ptr<Stamps> make_clock_stamps() {
  return std::make_unique<ClockStamps>();
}
std::unique_ptr<Stamps> Device::stamps() {
  return make_clock_stamps();
}

}  // namespace trireme
