#include "comm/measure.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>
#include <vector>

namespace trireme {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best time of an exchange of `bytes` between ranks 0 and 1, each try's that of the rank which came
// first: who comes late may find the message there. The number of tries is agreed on.
double best_exchange(Communicator& c, int64_t bytes, double seconds) {
  std::vector<std::byte> out(static_cast<size_t>(bytes), std::byte{1}), in(static_cast<size_t>(bytes));
  auto tensor = [&](std::vector<std::byte>& v) { return Tensor(v.data(), {bytes}, DType::u8); };
  const P2p batch[] = {{tensor(out), 1 - c.rank(), true}, {tensor(in), 1 - c.rank(), false}};
  auto exchange = [&] {
    const double begin = now();
    if (c.rank() < 2) c.p2p({.ops = batch}, {});
    return now() - begin;
  };
  double whole = std::numeric_limits<double>::max();
  for (int i = 0; i < 3; i++) {  // the first ones touch the memory
    const double begin = now();
    c.barrier({});
    exchange();
    whole = std::min(whole, now() - begin);
  }
  const double wanted = seconds / std::max(whole, 1e-7);
  const int64_t tries = agree_max(c, c.rank() == 0 ? int64_t(std::clamp(wanted, 3.0, 2000.0)) : 0);
  std::vector<double> mine, all(size_t(tries * c.size()));
  for (int64_t i = 0; i < tries; i++) {
    c.barrier({});
    mine.push_back(exchange());
  }
  gather_bytes(c, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  double best = std::numeric_limits<double>::max();
  for (size_t i = 0; i < size_t(tries); i++) best = std::min(best, std::max(all[i], all[size_t(tries) + i]));
  return best;
}

}  // namespace

LinkCost measure_link(Communicator& c, double seconds, int64_t bytes) {
  require(c.size() >= 2, "a link has two ends");
  const double one = best_exchange(c, 1, seconds / 2), many = best_exchange(c, bytes, seconds / 2);
  double link[] = {one, std::max(0.0, many - one) / double(bytes)};
  c.broadcast({.buf = Tensor(link, {2}, DType::f64)}, {});
  return {link[0], link[1]};
}

}  // namespace trireme
