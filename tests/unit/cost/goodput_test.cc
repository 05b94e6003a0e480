#include "cost/goodput.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "cost/checkpoint_plan.h"
#include "cost/time_to_loss.h"

namespace trireme {
namespace {

// Wall time of much work, failures drawn one by one. Each takes a machine away for `repair`, and waits for it
// where `spares` are away already.
double simulated_share(double mtbf, double interval, double save, double restart, double repair = 0,
                       size_t spares = 0) {
  const int segments = 40000;
  double wall = 0;
  uint64_t draw = 0;
  std::vector<double> back;  // when machines under repair come back
  const auto fail = [&] {
    std::erase_if(back, [&](double t) { return t <= wall; });
    const double wait = back.size() >= spares ? repair : 0;
    back.push_back(wall + repair);
    return restart + wait;
  };
  const auto next_failure = [&] { return -mtbf * std::log(1 - uniform(11, draw++)); };
  double until = next_failure();
  for (int i = 0; i < segments; i++) {
    for (double need = interval + save;;) {
      if (until > need) {
        until -= need, wall += need;
        break;
      }
      wall += until, until = next_failure();
      for (double again = fail();;) {  // a restart may fail too
        if (until > again) {
          until -= again, wall += again;
          break;
        }
        wall += until, until = next_failure();
        again = fail();
      }
    }
  }
  return interval * segments / wall;
}

TEST(Goodput, IsWhatDrawnFailuresLeave) {
  Reliability r{.mtbf_device_s = 3e6, .restart_s = 200, .repair_s = 0, .spares = 0};
  const Goodput g = goodput(r, 1000, 40);
  EXPECT_NEAR(g.mtbf_s, 3000, 1e-9);
  EXPECT_NEAR(g.share, simulated_share(g.mtbf_s, g.interval_s, 40, 200), 0.005);
}

TEST(Goodput, IsWhatDrawnFailuresLeaveWithSparesAndRepairs) {
  for (const int64_t spares : {0, 1, 2}) {
    Reliability r{.mtbf_device_s = 3e6, .restart_s = 200, .repair_s = 600, .spares = spares};
    const Goodput g = goodput(r, 1000, 40);
    EXPECT_NEAR(g.share, simulated_share(g.mtbf_s, g.interval_s, 40, 200, 600, size_t(spares)), 0.006)
        << spares;
  }
}

// exp(-mean) is no double beyond 745.
TEST(Goodput, ManyMachinesUnderRepair) {
  const auto waits = [](double mean, int64_t spares) {
    Reliability r{.mtbf_device_s = 1e9, .restart_s = 10, .repair_s = mean * 1e6, .spares = spares};
    return goodput(r, 1000, 1).waits;
  };
  for (const double mean : {500.0, 700.0, 800.0, 20000.0}) {
    EXPECT_NEAR(waits(mean, int64_t(mean)), 0.5, 0.03) << mean;
    EXPECT_NEAR(waits(mean, int64_t(mean + std::sqrt(mean))), 0.1587, 0.02) << mean;
    EXPECT_LT(waits(mean, int64_t(mean + 8 * std::sqrt(mean))), 1e-9) << mean;
  }
  EXPECT_NEAR(waits(600.001, 640) / waits(599.999, 640), 1, 0.1);
}

// However bad the machine, the best number of spares is found soon.
TEST(Goodput, EndsWhateverTheMachine) {
  const Goodput slow = goodput({.restart_s = 10, .repair_s = 1e6 * 3600}, 16384, 1);
  EXPECT_GT(slow.share, 0.5);
  EXPECT_GT(slow.spares, 300000);  // 327,680 machines under repair
  EXPECT_LT(slow.spares, 340000);
  EXPECT_EQ(goodput({.mtbf_device_s = 3.6e-3}, 1 << 20, 1e-6).share, 0);
  EXPECT_GE(goodput({.mtbf_device_s = 3.6e-3, .restart_s = 0, .repair_s = 1e12}, 1 << 20, 1e-7).share, 0);
}

// 12 bytes of master weights and moments a parameter, of a device's share, at 20 GB/s.
double save_stall_s(double parameters, int64_t devices) {
  const double bytes = double(checkpoint_bytes_per_parameter({})) * parameters;
  return checkpoint_plan({.bytes = bytes, .devices = double(devices)}).stall_s;
}

TEST(Goodput, ASaveIsItsShareOverTheHostsLink) {
  EXPECT_NEAR(save_stall_s(70e9, 1000), 70e9 * 12 / 1000 / 20e9, 1e-12);
}

TEST(Goodput, SparesBuyTimeAndCostMoney) {
  Reliability r{.spares = 0};
  const double save = save_stall_s(70e9, 16384);
  const Goodput none = goodput(r, 16384, save);
  r.spares = 60;
  const Goodput many = goodput(r, 16384, save);
  EXPECT_GT(many.share, none.share);
  EXPECT_GT(none.waits, 0.99);
  EXPECT_LT(many.waits, 1e-6);
  EXPECT_EQ(many.paid, 16384 + 60 * 8);
  r.spares = -1;
  const Goodput best = goodput(r, 16384, save);
  EXPECT_GT(best.spares, 4);
  EXPECT_LT(best.spares, 60);
  EXPECT_LE(double(best.paid) / best.share, double(many.paid) / many.share);
  EXPECT_LE(double(best.paid) / best.share, double(none.paid) / none.share);
  // Llama 3 405B trained more than 90 % of the time on 16,384 (Grattafiori et al. 2024, section 3.3.4).
  EXPECT_GT(best.share, 0.90);
}

TEST(TimeToLoss, ChinchillaAndBack) {
  // By hand: 1.8172 + 482.01 / 70e9^0.3478 + 2085.43 / 1.4e12^0.3658.
  EXPECT_NEAR(chinchilla_loss(70e9, 1.4e12), 1.8172 + 0.081495 + 0.075187, 1e-5);
  EXPECT_NEAR(chinchilla_tokens(7e9, chinchilla_loss(7e9, 3e11)) / 3e11, 1, 1e-9);
  EXPECT_TRUE(std::isinf(chinchilla_tokens(1e9, 1.9)));
  EXPECT_NEAR(critical_batch(2), 2.1e8 / 27.857618, 1e3);
  const double loss = 2.4;
  EXPECT_NEAR(tokens_to_loss(7e9, loss, critical_batch(loss)) / chinchilla_tokens(7e9, loss), 2, 1e-12);
}

}  // namespace
}  // namespace trireme
