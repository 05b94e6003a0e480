// Times of ops inside steps: by scripted places, and on the CPU by its clock.
#include "device/op_times.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/json.h"
#include "device/device.h"
#include "device/kernels_text.h"

namespace trireme {
namespace {

// Places at times that the case gives: what a GPU's events would say.
class ScriptedStamps final : public Stamps {
 public:
  explicit ScriptedStamps(std::deque<double> at) : at_(std::move(at)) {}
  void put() override { put_.push_back(at_.front()), at_.pop_front(); }
  std::vector<double> read() override { return std::exchange(put_, {}); }

 private:
  std::deque<double> at_;
  std::vector<double> put_;
};

const Cost kOfProduct{.flops = 4e9, .bytes_read = 20'000'000, .bytes_written = 10'000'000};
const Cost kOfNorm{.flops = 1e6, .bytes_read = 30'000'000, .bytes_written = 30'000'000};
Outputs shaped(int64_t rows, int64_t columns) {
  Outputs o;
  o.t[0].shape = {rows, columns}, o.n = 1;
  return o;
}
void see(OpTimes& t, std::string_view op, const Cost& c, const Outputs& o) {
  t.before(op), t.after(op, c, o);
}

OpTable two_steps() {
  auto cpu = make_cpu_device({.threads = 1});
  // Two products and a norm a step, the second step's slower; between ops 1 ms each.
  OpTimes times(cpu->kernels(), std::make_unique<ScriptedStamps>(std::deque<double>{
                                    .000, .004, .005, .007, .008, .010, .100, .106, .107, .109, .110, .114}));
  for (double wall : {.020, .030}) {
    see(times, "matmul", kOfProduct, shaped(8, 8));  // outside of a step: not looked at
    times.begin_step();
    see(times, "matmul", kOfProduct, shaped(64, 32));
    see(times, "norm", kOfNorm, shaped(64, 16));
    see(times, "matmul", kOfProduct, shaped(64, 32));
    times.end_step(wall);
  }
  return times.table();
}

TEST(OpTimes, AddsUpByOpAndShapePerStep) {
  const OpTable t = two_steps();
  EXPECT_EQ(t.steps, 2);
  EXPECT_DOUBLE_EQ(t.wall_s, .025);
  EXPECT_NEAR(t.ops_s, .010, 1e-12);
  EXPECT_NEAR(t.gap_s(), .015, 1e-12);
  ASSERT_EQ(t.rows.size(), 2u);
  EXPECT_EQ(t.rows[0].op, "matmul");
  EXPECT_EQ(t.rows[0].shape, "[64, 32]");
  EXPECT_EQ(t.rows[0].count, 2);
  EXPECT_NEAR(t.rows[0].seconds, .008, 1e-12);  // 4 + 2 and 6 + 4 ms
  EXPECT_NEAR(t.rows[0].tflops(), 1.0, 1e-9);   // 8 GFLOP in 8 ms
  EXPECT_NEAR(t.rows[1].seconds, .002, 1e-12);
  EXPECT_NEAR(t.rows[1].gb_per_s(), 30.0, 1e-9);
}

TEST(OpTimes, ComparesWithThePeaks) {
  const OpTable t = two_steps();
  const OpPeaks peaks{.flops = 2e12, .fp8_flops = 4e12, .bytes_per_s = 40e9, .source = "a file"};
  EXPECT_EQ(of_peak(t.rows[0], peaks).bound, "flops");
  EXPECT_NEAR(of_peak(t.rows[0], peaks).share, 0.5, 1e-9);
  EXPECT_EQ(of_peak(t.rows[1], peaks).bound, "bytes");
  EXPECT_NEAR(of_peak(t.rows[1], peaks).share, 0.75, 1e-9);
  OpRow codes = t.rows[0];
  codes.op = "fp8_matmul";
  codes.kernel = "8-bit one";
  EXPECT_NEAR(of_peak(codes, peaks).share, 0.25, 1e-9);
  EXPECT_EQ(of_peak(t.rows[0], {}).bound, "");
}

TEST(OpTimes, TextAndJsonHaveTheSumBesideTheStep) {
  const OpTable t = two_steps();
  const OpPeaks peaks{.flops = 2e12, .bytes_per_s = 40e9, .source = "a file"};
  const std::string text = to_text(t, peaks);
  for (const char* line : {"50% F  matmul [64, 32]\n", "75% B  norm [64, 16]\n", "10.000   40.00  all ops\n",
                           "15.000   60.00  gap: ", "25.000  100.00  step, mean of 2\n", "(a file)"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  std::vector<nlohmann::json> lines;
  const std::string all = to_json_lines(t, peaks, "cuda", "sm90");
  for (size_t at = 0; at < all.size(); at = all.find('\n', at) + 1)
    lines.push_back(nlohmann::json::parse(all.substr(at, all.find('\n', at) - at)));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["kind"], "step");
  EXPECT_EQ(lines[0]["attention"], "sm90");
  EXPECT_NEAR(lines[0]["gap_ms"].get<double>(), 15, 1e-9);
  EXPECT_EQ(lines[1]["op"], "matmul");
  EXPECT_NEAR(lines[1]["share"].get<double>(), .008 / .025, 1e-9);
  EXPECT_EQ(lines[2]["bound"], "bytes");
}

// On the CPU places are times of the host's clock: real ops, none of them missing.
TEST(OpTimes, OfRealOpsOnTheCpu) {
  auto cpu = make_cpu_device({.threads = 1});
  std::vector<float> x(4096, 1), y(4096);
  const Tensor from(x.data(), {64, 64}, DType::f32), to(y.data(), {64, 64}, DType::f32);
  OpTimes times(cpu->kernels(), cpu->stamps());
  cpu->kernels().observe(&times);
  times.begin_step();
  for (int i = 0; i < 5; i++) cpu->kernels().run(CastArgs{.src = from, .dst = to});
  times.end_step(1.0);
  cpu->kernels().observe(nullptr);
  const OpTable t = times.table();
  ASSERT_EQ(t.rows.size(), 1u);
  EXPECT_EQ(t.rows[0].count, 5);
  EXPECT_GT(t.rows[0].seconds, 0);
  EXPECT_LT(t.ops_s, 1);
  EXPECT_EQ(times.table().rows.size(), 0u);
}

TEST(KernelsText, GroupsKernelsByOp) {
  const KernelCount taken[] = {
      {"fp8_matmul", "8-bit one", 72}, {"attention", "mma.sync", 12}, {"fp8_matmul", "bf16", 2}};
  EXPECT_EQ(kernels_text(taken), "attention by mma.sync 12; fp8_matmul by 8-bit one 72, bf16 2");
  EXPECT_EQ(kernels_text({}), "");
}

}  // namespace
}  // namespace trireme
