// Masks of dropout: the vector kernels against the scalar definition, their statistics, and what is refused.
#include <gtest/gtest.h>

#include <vector>

#include "device/cpu/dropout.h"
#include "device/device.h"

namespace trireme {
namespace {

using cpu::KeepTile;

TEST(DropoutMask, KernelsDrawWhatTheDefinitionSays) {
  uint64_t key = rng_key(3, 0, "sizes");
  for (uint64_t i = 0; i < 60; i++) {
    auto pick = [&, n = i * 8]() mutable { return below(key, n++, 1 << 20); };
    DropoutMask mask{.rate = double(pick() % 1000) / 1000, .key = rng_key(i, i * i, "mask"), .first = 0};
    // Small, past 2^32, and with carries between the counter's words.
    uint64_t first = i % 3 == 0 ? pick() : i % 3 == 1 ? (uint64_t(1) << 34) - pick() % 40 : pick() << 30;
    KeepTile tile{.first = first,
                  .stride = int64_t(pick() % 700),
                  .rows = int64_t(1 + pick() % 16),
                  .columns = int64_t(1 + pick() % 600),
                  .words = 40};
    std::vector<uint16_t> bits(size_t(tile.rows * tile.words), 0xaaaa);
    cpu::keep_bits(mask, tile, bits.data());
    for (int64_t r = 0; r < tile.rows; r++)
      for (int64_t c = 0; c < tile.columns; c++) {
        bool kept = bits[size_t(r * tile.words + c / 16)] >> (c % 16) & 1;
        ASSERT_EQ(kept, mask.keeps(int64_t(tile.first) + r * tile.stride + c)) << i << " " << r << " " << c;
      }
  }
}

// Rows and columns that lie apart in whole sequences: every placement, tiles that begin anywhere.
TEST(DropoutMask, KernelsDrawPartsOfSequences) {
  const uint64_t key = rng_key(4, 0, "parts");
  for (uint64_t i = 0; i < 200; i++) {
    auto pick = [&, n = i * 16](uint64_t most) mutable { return int64_t(below(key, n++, most)); };
    const int ranks = int(2 + pick(3));
    const ContextPlace place{
        .size = ranks, .rank = int(pick(uint64_t(ranks))), .placement = ContextPlacement(pick(3))};
    const int64_t part = 2 * (1 + pick(i % 4 == 0 ? 300 : 40)), seq = part * ranks;
    const int other = int(pick(uint64_t(ranks)));
    const PositionRuns rows = place.runs(seq, place.rank).from(pick(uint64_t(part))),
                       keys = place.runs(seq, other).from(pick(uint64_t(part)));
    const DropoutMask mask{.rate = 0.4, .key = rng_key(i, 1, "mask")};
    const KeepTile tile{.first = uint64_t(pick(1 << 20)) << (i % 20),
                        .stride = seq,
                        .rows = std::min<int64_t>(16, part - rows.first),
                        .columns = part - keys.first,
                        .words = 40,
                        .row_places = rows,
                        .column_places = keys};
    std::vector<uint16_t> bits(size_t(tile.rows * tile.words), 0xaaaa);
    cpu::keep_bits(mask, tile, bits.data());
    for (int64_t r = 0; r < tile.rows; r++)
      for (int64_t c = 0; c < tile.columns; c++) {
        const int64_t row = place.position(rows.first + r, seq, place.rank),
                      column = place.position(keys.first + c, seq, other);
        const bool kept = bits[size_t(r * tile.words + c / 16)] >> (c % 16) & 1;
        ASSERT_EQ(kept, mask.keeps(int64_t(tile.first) + row * seq + column)) << i << " " << r << " " << c;
      }
  }
}

// The share kept is 1 - rate, of all elements and of every residue modulo small numbers: within 5 sigma.
TEST(DropoutMask, KeepRates) {
  constexpr int64_t kN = 1 << 18;
  for (double rate : {0.0001, 0.1, 0.5, 0.9}) {
    DropoutMask mask{.rate = rate, .key = rng_key(1, 2, "rates")};
    KeepTile tile{.rows = 1, .columns = kN, .words = kN / 16};
    std::vector<uint16_t> bits(size_t(tile.words));
    cpu::keep_bits(mask, tile, bits.data());
    auto kept = [&](int64_t i) { return bits[size_t(i / 16)] >> (i % 16) & 1; };
    for (int64_t step : {1, 2, 4, 16, 48, 256})
      for (int64_t at = 0; at < std::min<int64_t>(step, 20); at++) {
        double n = 0, sum = 0;
        for (int64_t i = at; i < kN; i += step) n++, sum += kept(i);
        EXPECT_NEAR(sum, n * (1 - rate), 5 * std::sqrt(n * rate * (1 - rate)) + 1) << rate << " " << step;
      }
    // Neighbours, and elements a row of 64 apart, are independent.
    for (int64_t apart : {1, 4, 64}) {
      double n = 0, both = 0, p = (1 - rate) * (1 - rate);
      for (int64_t i = 0; i + apart < kN; i += 2 * apart + 1) n++, both += kept(i) && kept(i + apart);
      EXPECT_NEAR(both, n * p, 5 * std::sqrt(n * p * (1 - p)) + 1) << rate << " " << apart;
    }
  }
}

TEST(DropoutMask, OtherSeedsStepsAndNamesDrawOtherMasks) {
  const uint64_t keys[] = {rng_key(1, 1, "blocks.0.mlp.resid"), rng_key(2, 1, "blocks.0.mlp.resid"),
                           rng_key(1, 2, "blocks.0.mlp.resid"), rng_key(1, 1, "blocks.1.mlp.resid")};
  for (size_t a = 0; a < 4; a++)
    for (size_t b = 0; b < a; b++) {
      int same = 0;
      for (int64_t i = 0; i < 4000; i++)
        same += DropoutMask{0.5, keys[a]}.keeps(i) == DropoutMask{0.5, keys[b]}.keeps(i);
      EXPECT_NEAR(same, 2000, 160) << a << " " << b;
    }
}

TEST(DropoutMask, RatesOutsideAreRefused) {
  auto device = make_device("cpu", {.threads = 1});
  std::vector<float> x(8, 1.0f);
  Tensor t(x.data(), {8}, DType::f32);
  for (double rate : {0.0, 1.0, -0.5, 1.5, std::nan("")})
    EXPECT_THROW(device->kernels().run(DropoutArgs{.x = t, .residual = {}, .y = t, .mask = {rate, 1, 0}}),
                 Error)
        << rate;
  device->kernels().run(DropoutArgs{.x = t, .residual = {}, .y = t, .mask = {1 - 1e-12, 1, 0}});
  for (float v : x) EXPECT_EQ(v, 0.0f);
}

}  // namespace
}  // namespace trireme
