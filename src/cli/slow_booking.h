// Progress of ranks that are recorded op by op.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/progress.h"
#include "base/say.h"
#include "base/timed.h"

namespace trireme::cli {

// Prints nothing in the first two seconds; then a note with `quicker`, the way to a quicker answer, and a
// bar.
class SlowBooking {
 public:
  explicit SlowBooking(std::string quicker) : quicker_(std::move(quicker)) {}
  void operator()(int64_t done, int64_t all) {
    constexpr double kPatience = 2;  // seconds
    if (!bar_ && now_s() - begin_ < kPatience) return;
    if (!bar_) {
      say("note: each of {} ranks is recorded op by op; {}\n", all, quicker_);
      bar_.emplace("recording ranks", all);
    }
    bar_->update(done);
  }

 private:
  std::string quicker_;
  double begin_ = now_s();
  std::optional<Progress> bar_;
};

}  // namespace trireme::cli
