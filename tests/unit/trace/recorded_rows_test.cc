// routing.jsonl: what is written is what is read, and what is wrong is named with its line.
#include <gtest/gtest.h>

#include "base/error.h"
#include "trace/recorded_rows.h"

namespace trireme::test {
namespace {

const RoutingShape kTwoRanks = {
    .dp = 2, .ep = 2, .layers = 2, .experts = 4, .choices = 2, .micro = 1, .global = 4, .seq_len = 8};

std::string header(RoutingShape s = kTwoRanks) {
  s.order = "pp dp cp tp";
  return to_json_line(s) + "\n";
}
std::string line(int64_t step, int rank, int64_t block, int64_t microbatch, std::vector<int64_t> rows) {
  return recorded_line(step, rank, block, microbatch, rows) + "\n";
}

TEST(RecordedRows, AreReadAsWritten) {
  const std::string text = header() + line(1, 0, 0, 0, {3, 5, 6, 2}) + line(1, 1, 0, 0, {4, 4, 4, 4}) +
                           line(3, 0, 1, 1, {16, 0, 0, 0}) + "{\"step\":4,\"rank\":0";  // killed here
  const RecordedRows r = parse_recorded_rows(text, "routing.jsonl");
  EXPECT_EQ(header(r.shape), header());
  ASSERT_EQ(r.steps.size(), 2u);
  const std::span<const int32_t> own = r.steps.at(1)->of(0, 0, 0);
  EXPECT_EQ(std::vector<int32_t>(own.begin(), own.end()), (std::vector<int32_t>{3, 5, 6, 2}));
  EXPECT_TRUE(r.steps.at(1)->of(0, 1, 0).empty());
  const std::vector<std::vector<int>> group = {{0, 1}};
  EXPECT_DOUBLE_EQ(r.steps.at(1)->fullest(group), 1.0);  // 16 and 16 of 32
  EXPECT_DOUBLE_EQ(r.steps.at(3)->fullest(group), 2.0);
}

std::string why_not_read(const std::string& text) {
  try {
    parse_recorded_rows(text, "routing.jsonl");
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "it was read";
}

TEST(RecordedRows, NamesWhatIsWrongAndWhere) {
  const std::string right = line(1, 0, 0, 0, {3, 5, 6, 2});
  RoutingShape large = kTwoRanks, many = kTwoRanks, odd = kTwoRanks, uneven = kTwoRanks;
  large.seq_len = 2000000000, many.dp = many.tp = 2000000, odd.ep = 3, uneven.global = 3;
  const std::pair<std::string, const char*> wrong[] = {
      {"", "is empty"},
      {"[]\n", "routing.jsonl:1 is no JSON object"},
      {std::string(100, '[') + "\n", "nested too deep"},
      {"{\"recorded\":\"routes\"}\n", "not of a recorded routing"},
      {header(large), "rows a rank and microbatch"},
      {header(many), "ranks"},
      {header(odd), "ep does not divide"},
      {header(uneven), "dp * micro does not divide"},
      {header() + right + right, "routing.jsonl:3 says again"},
      {header() + line(0, 0, 0, 0, {1, 1, 1, 1}), "\"step\""},
      {header() + line(1, 2, 0, 0, {1, 1, 1, 1}), "\"rank\""},
      {header() + line(1, 0, 2, 0, {1, 1, 1, 1}), "\"block\""},
      {header() + line(1, 0, 0, 2, {1, 1, 1, 1}), "\"microbatch\""},
      {header() + line(1, 0, 0, 0, {1, 1, 1}), "\"rows\" of 4 experts"},
      {header() + line(1, 0, 0, 0, {1, 1, 1, -1}), "counts of at most 16"},
      {header() + line(1, 0, 0, 0, {9, 1, 1, 9}), "counts of at most 16"},
      {header() + "{\"step\":1e300,\"rank\":0}\n", "\"step\""},
      {header() + "{\"step\":18446744073709551615}\n", "\"step\""}};
  for (const auto& [text, says] : wrong)
    EXPECT_NE(why_not_read(text).find(says), std::string::npos) << why_not_read(text) << "\nnot: " << says;
}

}  // namespace
}  // namespace trireme::test
