// Event files, read back by a parser of this test's own: framing, checksums, and what TensorBoard would keep.
#include "trace/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

namespace trireme {
namespace {

// Bit by bit, as the polynomial says.
uint32_t slow_crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (char c : bytes)
    for (int k = 0; k < 8; k++) {
      bool bit = (crc ^ uint32_t(uint8_t(c) >> k)) & 1;
      crc = crc >> 1 ^ (bit ? 0x82f63b78u : 0u);
    }
  return ~crc;
}

template <class T>
T load(std::string_view bytes) {
  T v;
  std::memcpy(&v, bytes.substr(0, sizeof v).data(), sizeof v);
  return v;
}

bool crc_fits(std::string_view bytes, uint32_t masked) {
  uint32_t rotated = masked - 0xa282ead8u;
  return (rotated >> 17 | rotated << 15) == slow_crc32c(bytes);
}

std::vector<std::string> records_of(std::string_view file) {
  std::vector<std::string> records;
  while (file.size() >= 12) {
    uint64_t n = load<uint64_t>(file);
    EXPECT_TRUE(crc_fits(file.substr(0, 8), load<uint32_t>(file.substr(8))));
    EXPECT_LE(n + 16, file.size());
    if (n + 16 > file.size()) break;
    records.emplace_back(file.substr(12, n));
    EXPECT_TRUE(crc_fits(records.back(), load<uint32_t>(file.substr(12 + n))));
    file.remove_prefix(16 + n);
  }
  EXPECT_EQ(file.size(), 0u);
  return records;
}

// Field number -> raw values; numbers as their bits.
struct Message {
  std::multimap<int, std::string> sized;
  std::multimap<int, uint64_t> numbers;
  explicit Message(std::string_view m) {
    auto varint = [&] {
      uint64_t v = 0;
      for (int shift = 0; !m.empty(); shift += 7) {
        uint8_t b = uint8_t(m[0]);
        m.remove_prefix(1);
        v |= uint64_t(b & 0x7f) << shift;
        if (!(b & 0x80)) break;
      }
      return v;
    };
    auto fixed = [&](size_t n) {
      uint64_t v = 0;
      std::memcpy(&v, m.data(), n);
      m.remove_prefix(n);
      return v;
    };
    while (!m.empty()) {
      uint64_t key = varint();
      int field = int(key >> 3);
      if ((key & 7) == 0) numbers.emplace(field, varint());
      if ((key & 7) == 1) numbers.emplace(field, fixed(8));
      if ((key & 7) == 5) numbers.emplace(field, fixed(4));
      if ((key & 7) != 2) continue;
      uint64_t n = varint();
      EXPECT_LE(n, m.size());
      n = std::min<uint64_t>(n, m.size());
      sized.emplace(field, std::string(m.substr(0, n)));
      m.remove_prefix(n);
    }
  }
  uint64_t number(int f) const { return numbers.count(f) ? numbers.find(f)->second : 0; }
  std::string text(int f) const { return sized.count(f) ? sized.find(f)->second : ""; }
};

struct Scalars {
  std::map<std::string, std::map<int64_t, float>> by_tag;
  std::string config;
  std::vector<int64_t> starts;
};

// As TensorBoard reads a folder: files by name; a START of step k forgets what came before from k on.
Scalars read_folder(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& e : fs::directory_iterator(folder)) files.push_back(e.path());
  std::sort(files.begin(), files.end());
  Scalars all;
  for (const fs::path& f : files) {
    bool first = true;
    for (const std::string& r : records_of(read_text(f))) {
      Message e(r);
      int64_t step = int64_t(e.number(2));
      EXPECT_GT(std::bit_cast<double>(e.number(1)), 1.6e9) << "seconds since 1970";
      if (std::exchange(first, false)) {
        EXPECT_EQ(e.text(3), "brain.Event:2");
      }
      if (e.sized.count(7)) {
        EXPECT_EQ(Message(e.text(7)).number(1), 1u);
        all.starts.push_back(step);
        for (auto& [tag, values] : all.by_tag) values.erase(values.lower_bound(step), values.end());
      }
      Message summary(e.text(5));
      for (const auto& [field, bytes] : summary.sized) {
        Message v(bytes);
        if (v.sized.count(8)) {
          EXPECT_EQ(Message(Message(v.text(9)).text(1)).text(1), "text");
          all.config = Message(v.text(8)).text(8);
        } else {
          EXPECT_TRUE(all.by_tag[v.text(1)].emplace(step, std::bit_cast<float>(uint32_t(v.number(2)))).second)
              << v.text(1) << " twice at step " << step;
        }
      }
    }
  }
  return all;
}

class TensorBoardTest : public ::testing::Test {
 protected:
  TensorBoardTest() : folder_(fs::path(testing::TempDir()) / fmt::format("trireme_tb_{}", ::getpid())) {
    fs::remove_all(folder_);
  }
  ~TensorBoardTest() override { fs::remove_all(folder_); }
  static StepMetrics of_step(int64_t step, double loss) {
    StepMetrics m;
    m.step = step, m.loss = loss, m.lr = 1e-3, m.mfu = 0.5, m.peak_total = 1000 + step, m.peak[0] = 17;
    m.forward_s = 0.25;
    if (step % 2 == 0) m.eval_loss = loss + 1;
    return m;
  }
  fs::path folder_;
};

TEST(Crc, KnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);  // the check value of CRC-32C
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string bytes;
  for (int i = 0; i < 300; i++) {
    bytes += char(i * 37);
    ASSERT_EQ(crc32c(bytes), slow_crc32c(bytes));
  }
}

TEST_F(TensorBoardTest, EveryNumberOfEveryStep) {
  {
    TensorBoardFile f(folder_, 0, "[model]\nlayers = 2\n");
    EXPECT_FALSE(fs::exists(folder_)) << "nothing before the first step";
    for (int64_t s = 1; s <= 5; s++) f.write(of_step(s, 1.0 / double(s)));
  }
  Scalars all = read_folder(folder_);
  EXPECT_EQ(all.starts, std::vector<int64_t>{1});
  EXPECT_EQ(all.config, "    [model]\n    layers = 2\n    ");
  EXPECT_EQ(all.by_tag.size(), scalars_of(of_step(2, 1)).size());
  EXPECT_EQ(all.by_tag["loss/train"].size(), 5u);
  for (int64_t s = 1; s <= 5; s++) EXPECT_EQ(all.by_tag["loss/train"][s], float(1.0 / double(s)));
  EXPECT_EQ(all.by_tag["loss/eval"], (std::map<int64_t, float>{{2, 1.5f}, {4, 1.25f}}));
  EXPECT_EQ(all.by_tag["memory/weights"][3], 17);
  EXPECT_EQ(all.by_tag["memory/total"][5], 1005);
  EXPECT_EQ(all.by_tag["seconds/forward"][1], 0.25f);
}

// A skipped step of f16 has no gradient norm. The file stays whole, and the curve has a gap there.
TEST_F(TensorBoardTest, NumbersThatAreNotFinite) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::map<int64_t, double> norms = {{1, kInf}, {2, -kInf}, {3, std::nan("")}, {4, 1e300}, {5, 0.5}};
  {
    TensorBoardFile f(folder_, 0, "");
    for (auto [step, norm] : norms) {
      StepMetrics m = of_step(step, 1);
      m.grad_norm = norm;
      f.write(m);
    }
  }
  Scalars all = read_folder(folder_);
  std::map<int64_t, float>& read = all.by_tag["optimizer/grad_norm"];
  ASSERT_EQ(read.size(), 5u);
  EXPECT_EQ(read[1], float(kInf));
  EXPECT_EQ(read[2], float(-kInf));
  EXPECT_TRUE(std::isnan(read[3]));
  EXPECT_EQ(read[4], float(kInf));
  EXPECT_EQ(read[5], 0.5f);
  EXPECT_EQ(all.by_tag["loss/train"].size(), 5u);
}

// Killed at step 7, resumed from 4, killed at once, resumed from 4 again: within one second.
TEST_F(TensorBoardTest, NoStepTwiceAndNoneThatNeverCounted) {
  struct Start {
    int64_t from, to;
    double loss;
  };
  for (Start start : {Start{0, 7, 1}, Start{4, 5, 2}, Start{4, 6, 3}}) {
    TensorBoardFile f(folder_, start.from, "");
    for (int64_t s = start.from + 1; s <= start.to; s++) f.write(of_step(s, start.loss));
  }
  Scalars all = read_folder(folder_);
  EXPECT_EQ(all.starts, (std::vector<int64_t>{1, 5, 5}));
  EXPECT_EQ(all.by_tag["loss/train"],
            (std::map<int64_t, float>{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 3}, {6, 3}}));
}

}  // namespace
}  // namespace trireme
