// What every rank says at the end of a step, gathered while all of them go on.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "comm/comm_set.h"
#include "optim/grad_norm.h"

namespace trireme {

// On a stream and a communicator of its own, beside compute and every other message; small, and not counted
// with the step's bytes, as agreements are not. Driven from the rank's thread.
class Settlement {
 public:
  Settlement(CommFactory&, Device&);  // collective over the world
  Settlement(const Settlement&) = delete;
  ~Settlement();

  // numbers: as many on every rank. values: non-negative, whose order-independent sum over all ranks is
  // wanted. Both are copied.
  void post(std::span<const double> numbers, std::span<const double> values);
  // Behind post(): bytes of the caller's, as many on every rank.
  void tell(std::span<const std::byte> mine);

  void wait();                                      // for post()
  std::span<const double> numbers(int rank) const;  // then, of a rank of the world
  double sum() const;                               // NaN: a value was not finite
  std::span<const std::byte> told();                // waits; of all ranks, in order
  int ranks() const { return world_->size(); }

 private:
  static void cut(void* self, int64_t);
  double largest() const;

  std::unique_ptr<Communicator> world_;
  Device& device_;
  Stream stream_;
  bool has_data_;
  std::vector<double> mine_, all_;  // numbers, then the largest value; by rank
  std::vector<double> values_;
  Limbs limbs_{};
  std::vector<Limbs> all_limbs_;
  std::vector<std::byte> told_mine_, told_;
  Event posted_, told_at_;
};

}  // namespace trireme
