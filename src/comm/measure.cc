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
double best_exchange(Communicator& c, int64_t bytes, double seconds, const std::function<bool()>& stop) {
  constexpr int64_t kAsks = 16;  // tries: a machine that is busy may take a second for them
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
  const int64_t most = agree_max(c, c.rank() == 0 ? int64_t(std::clamp(wanted, 3.0, 2000.0)) : 0);
  std::vector<double> mine;
  for (int64_t i = 0; i < most; i++) {
    if (i > 0 && i % kAsks == 0 && agree_max(c, c.rank() == 0 && stop && stop()) > 0) break;
    c.barrier({});
    mine.push_back(exchange());
  }
  const size_t tries = mine.size();
  std::vector<double> all(tries * size_t(c.size()));
  gather_bytes(c, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  double best = std::numeric_limits<double>::max();
  for (size_t i = 0; i < tries; i++) best = std::min(best, std::max(all[i], all[tries + i]));
  return best;
}

}  // namespace

LinkCost measure_link(Communicator& c, double seconds, int64_t bytes, const std::function<bool()>& stop) {
  require(c.size() >= 2, "a link has two ends");
  const double one = best_exchange(c, 1, seconds / 2, stop),
               many = best_exchange(c, bytes, seconds / 2, stop);
  double link[] = {one, std::max(0.0, many - one) / double(bytes)};
  c.broadcast({.buf = Tensor(link, {2}, DType::f64)}, {});
  return {link[0], link[1]};
}

}  // namespace trireme
