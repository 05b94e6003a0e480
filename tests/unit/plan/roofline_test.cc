// The roofline's picture: no two texts of it meet, and none leaves it.
#include "estimate/roofline.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme {
namespace {

struct DrawnText {
  double left = 0, right = 0, y = 0, size = 12;
  std::string what;
};

double attribute(const std::string& of, const std::string& name, double otherwise) {
  const size_t at = of.find(" " + name + "=\"");
  return at == of.npos ? otherwise : std::stod(of.substr(at + name.size() + 3));
}

// Letters of a sans serif take 0.58 of its size at most, in the mean of a label.
std::vector<DrawnText> texts_of(const std::string& svg) {
  std::vector<DrawnText> all;
  for (size_t at = svg.find("<text "); at != svg.npos; at = svg.find("<text ", at + 1)) {
    const size_t open = svg.find('>', at), close = svg.find('<', open);
    const std::string style = svg.substr(at, open - at), what = svg.substr(open + 1, close - open - 1);
    DrawnText t{.y = attribute(style, "y", 0), .size = attribute(style, "font-size", 12), .what = what};
    const double x = attribute(style, "x", 0), wide = 0.58 * t.size * double(what.size());
    const bool middle = style.find("\"middle\"") != style.npos, last = style.find("\"end\"") != style.npos;
    t.left = x - (middle ? wide / 2 : last ? wide : 0), t.right = t.left + wide;
    all.push_back(t);
  }
  return all;
}

RooflineCase llama_70b_on_h100s(int64_t tp, int64_t gpus, int64_t batch) {
  RooflineCase c{.name = "llama3-70B", .device = "H100", .device_source = "a test"};
  c.model = ModelSpec::of("llama");
  c.model.layers = 80, c.model.hidden = 8192, c.model.heads = 64, c.model.kv_heads = 8, c.model.ffn = 28672;
  c.model.vocab = 128256;
  c.model.finish(4096);
  c.figures = {.bf16 = 989e12, .memory = 80e9, .bandwidth = 3.35e12, .bus = 360e9, .near = 8, .nic = 50e9};
  c.tp = tp, c.gpus = gpus, c.batch = batch, c.microbatches = 8;
  return c;
}

const RooflinePoint& point_of(const std::vector<RooflinePoint>& all, Phase phase, const std::string& part) {
  for (const RooflinePoint& p : all)
    if (p.phase == phase && p.part == part) return p;
  ADD_FAILURE() << "no " << part;
  return all.front();
}

// H100: 989 TFLOP/s, 3.35 TB/s, 360 GB/s to seven others, 50 GB/s beyond. Llama 3 70B, 70.6 B parameters.
TEST(RooflineNumbers, ByHand) {
  RooflineCase c = llama_70b_on_h100s(8, 64, 4);
  const Roofline r = roofline_of(c);
  EXPECT_NEAR(r.ridge, 295.2, 0.05);
  EXPECT_NEAR(r.near_ridge, 2747, 0.5);
  EXPECT_NEAR(r.far_ridge, 19780, 0.5);
  // Eight devices are near one another; 64 are not.
  EXPECT_EQ(point_of(r.network, Phase::training, "tensor parallel").slope, 360e9);
  const RooflinePoint& gradients = point_of(r.network, Phase::training, "gradients");
  EXPECT_EQ(gradients.slope, 50e9);
  // A ring over eight replicas moves 7/8 twice of an eighth of the gradients in 16 bits, once in 8
  // microbatches.
  const double parameters =
      80 * (2.0 * 8192 * 8192 + 2 * 8192 * 1024 + 3.0 * 8192 * 28672 + 2 * 8192) + 2.0 * 8192 * 128256 + 8192;
  EXPECT_NEAR(gradients.bytes, 2 * 7.0 / 8 * 2 * parameters / 8 / 8, 1);
  EXPECT_NEAR(gradients.seconds, std::max(gradients.flops / 989e12, gradients.bytes / 50e9), 1e-12);
  // Decoding four texts is bound by memory: its products read an eighth of the weights, and take as long.
  const RooflinePoint& decode = point_of(r.memory, Phase::decode, "products");
  EXPECT_FALSE(decode.compute_bound());
  const double weights = 2 * 80 * (2.0 * 8192 * 8192 + 2 * 8192 * 1024 + 3.0 * 8192 * 28672) / 8;
  EXPECT_NEAR(decode.seconds / (weights / 3.35e12), 1, 0.01);
  EXPECT_NEAR(decode.attainable() / (4 * 3.35e12), 1, 0.01);  // two FLOPs for two bytes, four times
}

// The fewest texts whose products reach the ridge: with so many they do, with one fewer they do not.
TEST(RooflineNumbers, RowsAtTheRidgeAreTheFewest) {
  for (const int64_t tp : {1, 2, 8}) {
    RooflineCase c = llama_70b_on_h100s(tp, tp, 1);
    const double rows = roofline_of(c).rows_at_ridge;
    const auto bound = [&](double n) {
      c.batch = int64_t(n);
      return point_of(roofline_of(c).memory, Phase::decode, "products").compute_bound();
    };
    EXPECT_GT(rows, 295);
    EXPECT_TRUE(bound(rows)) << rows;
    EXPECT_FALSE(bound(rows - 1)) << rows;
  }
}

TEST(RooflinePicture, NoTwoTextsMeet) {
  for (const auto& [tp, gpus] : {std::pair<int64_t, int64_t>{1, 1}, {8, 8}, {8, 64}, {16, 1024}})
    for (const int64_t batch : {1, 64, 1024})
      for (const double nic : {0.0, 5e9, 50e9, 359e9}) {
        SCOPED_TRACE("tp " + std::to_string(tp) + ", batch " + std::to_string(batch));
        RooflineCase c = llama_70b_on_h100s(tp, gpus, batch);
        c.figures.nic = nic;
        const std::vector<DrawnText> all = texts_of(roofline_svg(c, roofline_of(c)));
        ASSERT_GE(all.size(), 12u);
        for (size_t i = 0; i < all.size(); i++) {
          EXPECT_GE(all[i].left, 0) << all[i].what;
          EXPECT_LE(all[i].right, 960) << all[i].what;
          EXPECT_LE(all[i].y, 536) << all[i].what;
          for (size_t k = 0; k < i; k++) {
            const bool apart = all[i].right <= all[k].left || all[k].right <= all[i].left;
            EXPECT_TRUE(apart || std::abs(all[i].y - all[k].y) >= 12) << all[i].what << " on " << all[k].what;
          }
        }
      }
}

}  // namespace
}  // namespace trireme
