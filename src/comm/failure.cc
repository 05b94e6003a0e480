#include "comm/failure.h"

#include "base/error.h"

namespace trireme {

bool Failure::set(int rank, std::string_view why, bool certain) {
  std::lock_guard lock(mutex_);
  if (set_ && (certain_ || !certain || rank != rank_)) return false;
  rank_ = rank;
  message_ = fmt::format("rank {} failed: {}", rank, why);
  certain_ = certain;
  set_ = true;
  return true;
}

int Failure::rank() const {
  std::lock_guard lock(mutex_);
  return rank_;
}

void Failure::raise() const {
  std::lock_guard lock(mutex_);
  throw Error(message_);
}

}  // namespace trireme
