#include "trace/metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"

namespace trireme {
namespace {

using nlohmann::json;

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() : path_(fs::path(testing::TempDir()) / fmt::format("trireme_metrics_{}.jsonl", ::getpid())) {
    fs::remove(path_);
  }
  ~MetricsTest() override { fs::remove(path_); }

  static StepMetrics of_step(int64_t step) {
    StepMetrics m;
    m.step = step, m.loss = 1.0 / double(step + 2), m.tokens = 64;
    return m;
  }
  // A file of lines 1 to n, then whatever text.
  void write(int64_t n, const std::string& then = "") const {
    std::string text;
    for (int64_t s = 1; s <= n; s++) text += to_json_line(of_step(s)) + "\n";
    write_text_atomic(path_, text + then);
  }
  // What is there after a run opened the file to go on from `last_step`.
  std::string opened_at(int64_t last_step) const {
    MetricsFile file(path_, last_step);
    return fs::exists(path_) ? read_text(path_) : "no file";
  }
  std::string lines(int64_t n) const {
    std::string text;
    for (int64_t s = 1; s <= n; s++) text += to_json_line(of_step(s)) + "\n";
    return text;
  }

  fs::path path_;
};

TEST_F(MetricsTest, ALineHasEveryNumberUnrounded) {
  StepMetrics m = of_step(7);
  m.grad_norm = 0.1 + 0.2, m.lr = 1e-3 / 3, m.step_s = 0.25, m.tokens_per_s = 256, m.mfu = 0.4, m.hfu = 0.5;
  m.peak[size_t(Bucket::weights)] = 1 << 20, m.peak_total = int64_t(1) << 40;
  m.at_peak[size_t(Bucket::scratch)] = 3;
  m.data_s = 1, m.forward_s = 2, m.backward_s = 3, m.norm_s = 4, m.update_s = 5, m.other_s = 6;
  EXPECT_FALSE(json::parse(to_json_line(m)).contains("loss_scale"));
  m.loss_scale = 0x1p-3, m.skipped = true;
  std::string line = to_json_line(m);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(json::parse(line)["loss_scale"], 0.125);
  EXPECT_EQ(json::parse(line)["skipped"], true);
  json j = json::parse(line);
  EXPECT_EQ(j["step"], 7);
  EXPECT_EQ(j["loss"].get<double>(), m.loss);
  EXPECT_EQ(j["grad_norm"].get<double>(), m.grad_norm);
  EXPECT_EQ(j["lr"].get<double>(), m.lr);
  EXPECT_EQ(j["tokens"], 64);
  EXPECT_EQ(j["step_s"], 0.25);
  EXPECT_EQ(j["tokens_per_s"], 256);
  EXPECT_EQ(j["mfu"], 0.4);
  EXPECT_EQ(j["hfu"], 0.5);
  EXPECT_EQ(j["peak_bytes"]["weights"], 1 << 20);
  EXPECT_EQ(j["peak_bytes"]["total"], int64_t(1) << 40);
  EXPECT_EQ(j["peak_bytes"].size(), kBuckets + 1);
  EXPECT_EQ(j["at_peak_bytes"]["scratch"], 3);
  EXPECT_EQ(j["data_s"], 1);
  EXPECT_EQ(j["time"],
            (json{{"forward", 2.0}, {"backward", 3.0}, {"norm", 4.0}, {"update", 5.0}, {"other", 6.0}}));
  EXPECT_FALSE(j.contains("eval_loss"));
  m.eval_loss = 2.5;
  EXPECT_EQ(json::parse(to_json_line(m))["eval_loss"], 2.5);
}

TEST_F(MetricsTest, WritesLinesAndKeepsThoseOfARunThatGoesOn) {
  {
    MetricsFile file(path_, 0);
    for (int64_t s = 1; s <= 3; s++) file.write(of_step(s));
  }
  EXPECT_EQ(read_text(path_), lines(3));
  MetricsFile file(path_, 3);
  file.write(of_step(4));
  EXPECT_EQ(read_text(path_), lines(4));
}

TEST_F(MetricsTest, DropsWhatLiesBeyondTheStep) {
  for (int64_t last : {0, 1, 4, 5, 9}) {
    write(5);
    EXPECT_EQ(opened_at(last), lines(std::min<int64_t>(last, 5))) << last;
  }
}

TEST_F(MetricsTest, DropsHalfALineHoweverMuchOfItIsThere) {
  std::string sixth = to_json_line(of_step(6));
  // The whole line without its end is half a line too.
  for (size_t n : {size_t(1), size_t(2), size_t(9), size_t(100), sixth.size() - 1, sixth.size()}) {
    write(5, sixth.substr(0, n));
    ASSERT_EQ(opened_at(9), lines(5)) << n;
  }
}

TEST_F(MetricsTest, DropsWhatIsNoLineOfMetrics) {
  for (const char* foreign : {"\n", "nonsense\n", "[1]\n", "3\n", "{}\n", "{\"step\": \"2\"}\n",
                              "{\"step\": 2.5}\n", "{\"step\": null}\n", "\0\0\0\n"}) {
    write(2, foreign + to_json_line(of_step(3)) + "\n");
    EXPECT_EQ(opened_at(3), lines(3)) << foreign;
  }
}

TEST_F(MetricsTest, LeavesAloneWhatNeedsNoChange) {
  EXPECT_EQ(opened_at(5), "no file");
  write(5);
  auto before = fs::last_write_time(path_);
  fs::last_write_time(path_, before - std::chrono::hours(1));
  EXPECT_EQ(opened_at(5), lines(5));
  EXPECT_EQ(fs::last_write_time(path_), before - std::chrono::hours(1));
  write_text_atomic(path_, "");
  EXPECT_EQ(opened_at(5), "");
}

}  // namespace
}  // namespace trireme
