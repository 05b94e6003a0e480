// What emulate_sm90.h makes of Hopper's instructions, and which faults it finds.
#include "emulate_sm90.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "base/rng.h"
#include "device/cuda/attention_sm90.h"
#include "tensor/tensor.h"

namespace trireme::emulate {
namespace {

namespace sm90 = cuda::sm90;

template <class F>
std::string sm90_error_of(const F& f) {
  try {
    f();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

float value(uint64_t key, int i, int k) {  // exact in bf16, and sums of 16 products exact in f32
  return float(int(below(key, uint64_t(i * 1000 + k), 15)) - 7);
}
uint16_t bits(float x) {
  return bf16(x).bits;
}
void put(uint32_t address, uint16_t x) {
  std::memcpy(shared_at(address, 2), &x, 2);
}
uint32_t swizzle(uint32_t a) {
  return a ^ (a >> 7 & 7) << 4;
}

// A tile of `rows` rows and 64 columns: element (row, column) where TMA would put it.
void put_tile(uint32_t tile, int rows, uint64_t key, bool turned) {
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < 64; c++)
      put(swizzle(tile + uint32_t(r * 128 + c * 2)), bits(turned ? value(key, c, r) : value(key, r, c)));
}

// m64n64k16 of every majorness, and from registers.
TEST(Sm90Emulation, MultipliesWhatTheDescriptorsSay) {
  for (bool left_turned : {false, true})
    for (bool right_turned : {false, true})
      for (bool in_registers : {false, true}) {
        std::vector<float> d(64 * 64);
        run({1, 1, 1}, 128, 48 << 10, [&] {
          const uint32_t base = (shared_address(dynamic_shared()) + 1023) & ~1023u, right = base + (16 << 10);
          if (threadIdx.x == 0) put_tile(base, 64, 1, left_turned), put_tile(right, 64, 2, right_turned);
          __syncthreads();
          const int row = int(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4), t = int(threadIdx.x % 4);
          float c[32];
          for (int i = 0; i < 32; i++) c[i] = 100;
          uint32_t left[2][4];
          for (int step = 0; step < 2; step++)
            for (int r = 0; r < 4; r++) {
              const int i = row + r % 2 * 8, k = 16 * step + 2 * t + r / 2 * 8;
              left[step][r] = uint32_t(bits(value(1, i, k))) | uint32_t(bits(value(1, i, k + 1))) << 16;
            }
          for (auto& fragment : left) pin_left(fragment);
          begin_products();
          for (int step = 0; step < 2; step++) {
            Product p{.columns = 64, .fresh = step == 0, .right_turned = right_turned};
            if (in_registers)
              p.left_in_registers = true;
            else
              p.left_turned = left_turned, p.left = left_turned ? sm90::summed_rows(base, 64, 0, step)
                                                                : sm90::summed_columns(base, 64, 0, step);
            p.right = right_turned ? sm90::summed_rows(right, 64, 0, step)
                                   : sm90::summed_columns(right, 64, 0, step);
            multiply(p, c, in_registers ? left[step] : nullptr);
          }
          end_products();
          EXPECT_TRUE(std::isnan(c[0]));  // nothing is there before it is waited for
          wait_products(0);
          for (int i = 0; i < 32; i++)
            d[size_t((row + i % 4 / 2 * 8) * 64 + i / 4 * 8 + 2 * t + i % 2)] = c[i];
        });
        for (int i = 0; i < 64; i++)
          for (int j = 0; j < 64; j++) {
            float want = 0;
            for (int k = 0; k < 32; k++) want += value(1, i, k) * value(2, j, k);
            ASSERT_EQ(d[size_t(i * 64 + j)], want)
                << i << " " << j << left_turned << right_turned << in_registers;
          }
      }
}

// A kernel of one product over a box that TMA brings: with the waits that it needs, or without one of them.
struct Faults {
  bool early = false, unfenced = false, written_by_thread = false, changes_left = false, splits = false;
  bool never_comes = false, too_many = false, ends_early = false;
  bool unshown = false, shown_by_another = false, unmade = false, too_large = false;
  bool unpinned = false, pinned_late = false, written_late = false, comes_in_passing = false;
};
std::vector<float> through(const Faults& f, uint64_t order) {
  static uint64_t barrier;
  set_order(order);
  std::vector<uint16_t> x(64 * 64);
  for (size_t i = 0; i < x.size(); i++) x[i] = bits(value(5, int(i / 64), int(i % 64)));
  const TileMap map = tile_map(x.data(), {64, 1, 50, 1}, {128, 128, 128 * 64}, {64, 1, 64, 1});
  std::vector<float> out(128 * 32);
  run({1, 1, 1}, 128, 32 << 10, [&] {
    const uint32_t tile = (shared_address(dynamic_shared()) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
      if (!f.unmade) init_barrier(barrier, 1);
      if (!f.unshown && !f.shown_by_another) show_barriers();
      for (uint32_t a = tile; a < tile + 64 * 128; a += 2) put(a, bits(1));
    }
    if (f.shown_by_another && threadIdx.x == 1) show_barriers();
    if (f.comes_in_passing) pass_by(1, 256);
    __syncthreads();
    if (threadIdx.x == 0 && !f.never_comes) {
      arrive_expecting(barrier, f.too_large ? 1 << 20 : 64 * 128);
      if (f.too_many) arrive(barrier);
      copy_box(tile, map, barrier, 0, 0, 0, 0);
    }
    if (!f.early && !f.ends_early) wait_for(barrier, 0);
    if (f.ends_early) return;
    if (f.written_by_thread && threadIdx.x == 7) written_by_thread(tile, 16);
    __syncthreads();
    float c[32] = {};
    uint32_t left[4];
    for (uint32_t& l : left) l = uint32_t(bits(1)) | uint32_t(bits(1)) << 16;
    if (!f.unpinned && !f.pinned_late) pin_left(left);
    if (!f.unfenced) begin_products();
    if (f.pinned_late) pin_left(left);
    if (f.written_late) left[1]++;
    const Product p{.columns = f.splits && threadIdx.x == 9 ? 32 : 64,
                    .left_in_registers = true,
                    .right = sm90::summed_columns(tile, 64, 0, 0)};
    multiply(p, c, left);
    end_products();
    if (f.changes_left) left[0]++;
    wait_products(0);
    std::copy_n(c, 32, out.data() + 32 * threadIdx.x);
    if (f.early) wait_for(barrier, 0);
  });
  set_order(0);
  return out;
}

TEST(Sm90Emulation, WhatIsNotWaitedForShowsInSomeOrder) {
  std::set<std::vector<float>> waited, early;
  for (uint64_t order = 1; order < 20; order++)
    waited.insert(through({}, order)), early.insert(through({.early = true}, order));
  EXPECT_EQ(waited.size(), 1u);
  EXPECT_GT(early.size(), 1u);
  const auto& c = *waited.begin();
  for (int j = 0; j < 64; j++) {  // rows beyond the 50th came as zeros
    float want = 0;
    for (int k = 0; k < 16; k++) want += j < 50 ? value(5, j, k) : 0.0f;
    EXPECT_EQ(c[size_t(32 * (j % 8 / 2) + j / 8 * 4 + j % 2)], want) << j;
  }
}

TEST(Sm90Emulation, FindsFaults) {
  const std::pair<Faults, const char*> faults[] = {
      {{.unfenced = true}, "wgmma.fence"},
      {{.written_by_thread = true}, "did not fence"},
      {{.changes_left = true}, "a left operand in registers changed"},
      {{.splits = true}, "multiply different operands"},
      {{.never_comes = true}, "128 wait for a phase"},
      {{.too_many = true}, "more arrivals"},
      {{.unshown = true}, "without show_barriers"},
      {{.shown_by_another = true}, "without show_barriers"},
      {{.unmade = true}, "has not made"},
      {{.too_large = true}, "at most 2^20 - 1 bytes"},
      {{.unpinned = true}, "not pinned"},
      {{.pinned_late = true}, "not pinned"},
      {{.written_late = true}, "written behind wgmma.fence"},
      {{.comes_in_passing = true}, "waited for more threads"},
      {{.ends_early = true}, "ended while copies"}};
  for (const auto& [f, words] : faults)
    EXPECT_NE(sm90_error_of([&, f = f] { through(f, 0); }).find(words), std::string::npos) << words;
  EXPECT_EQ(sm90_error_of([&] { through({}, 3); }), "");  // and all is well after
}

TEST(Sm90Emulation, RefusesMapsThatTheDriverRefuses) {
  alignas(16) static std::byte data[32];
  struct Map {
    const std::byte* at = data;
    uint64_t dims[4] = {64, 2, 50, 3}, strides[3] = {128, 256, 12800};
    uint32_t box[4] = {64, 1, 256, 1};
  };
  const auto error = [](const auto& change) {
    Map m;
    change(m);
    return sm90_error_of([&] { tile_map(m.at, m.dims, m.strides, m.box); });
  };
  EXPECT_EQ(error([](Map&) {}), "");
  EXPECT_EQ(error([](Map& m) { m.dims[2] = uint64_t(1) << 32, m.strides[2] = (uint64_t(1) << 40) - 16; }),
            "");
  EXPECT_NE(error([](Map& m) { m.at += 8; }).find("16-byte aligned"), std::string::npos);
  for (int d = 0; d < 4; d++) {
    EXPECT_NE(error([&](Map& m) { m.dims[d] = 0; }).find("dims"), std::string::npos) << d;
    EXPECT_NE(error([&](Map& m) { m.dims[d] = (uint64_t(1) << 32) + 1; }).find("dims"), std::string::npos)
        << d;
    EXPECT_NE(error([&](Map& m) { m.box[d] = 0; }).find("a box"), std::string::npos) << d;
    EXPECT_NE(error([&](Map& m) { m.box[d] = 257; }).find("a box"), std::string::npos) << d;
  }
  for (int d = 0; d < 3; d++) {
    EXPECT_NE(error([&](Map& m) { m.strides[d] += 8; }).find("strides"), std::string::npos) << d;
    EXPECT_NE(error([&](Map& m) { m.strides[d] = uint64_t(1) << 40; }).find("strides"), std::string::npos)
        << d;
  }
}

TEST(Sm90Emulation, BulkCopiesAddInTheOrderThatCountsGive) {
  for (uint64_t order = 0; order < 12; order++) {
    set_order(order);
    alignas(16) float out[4] = {1, 2, 3, 4};
    run({1, 1, 1}, 32, 64, [&] {
      const uint32_t from = (shared_address(dynamic_shared()) + 15) & ~15u;
      if (threadIdx.x != 0) return;
      for (int times = 0; times < 3; times++) {
        const float x[4] = {10, 20, 30, float(40 * times)};
        std::memcpy(shared_at(from, 16), x, 16);
        written_by_thread(from, 16), fence_async();
        bulk_out(out, from, 16, times > 0);
        end_bulk();
        wait_bulk(0, true);  // what it reads is written again
        if (times == 0) wait_bulk(0, false);
      }
      wait_bulk(0, false);
    });
    EXPECT_EQ(out[0], 30);
    EXPECT_EQ(out[3], 120);
  }
  set_order(0);
}

TEST(Sm90Emulation, NamedBarriersLetGoWhenAllHaveCome) {
  for (uint64_t order = 0; order < 8; order++) {
    set_order(order);
    int first = 0, seen = 0;
    run({1, 1, 1}, 96, 0, [&] {
      if (threadIdx.x / 32 == 0) first++, pass_by(3, 96);
      if (threadIdx.x / 32 == 1) meet(3, 96), seen += first == 32;
      if (threadIdx.x / 32 == 2) meet(3, 96);
    });
    EXPECT_EQ(seen, 32);
  }
  set_order(0);
  EXPECT_NE(sm90_error_of([] {
              run({1, 1, 1}, 64, 0, [] { meet(1, 96); });
            }).find("64 wait for a phase"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::emulate
