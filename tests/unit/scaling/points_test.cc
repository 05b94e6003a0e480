#include "scaling/points.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::test {
namespace {

std::string fault_of(std::string_view text) {
  try {
    read_loss_table(text, "t.csv");
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.what();
  }
  return "";
}

TEST(LossTable, ReadsCsv) {
  const LossTable t = read_loss_table(
      "\xEF\xBB\xBF# runs\nx,Model Size,Training "
      "FLOP,loss,\"run\"\r\n1,1e6,6e13,3.5,a\r\n\n2,2e6,\"6e13\",3.25,a\n",
      "t.csv");
  ASSERT_EQ(t.points.size(), 2u);
  EXPECT_EQ(t.points[0].tokens, 1e7);
  EXPECT_EQ(t.points[1].parameters, 2e6);
  EXPECT_EQ(t.points[1].loss, 3.25);
  EXPECT_EQ(t.runs, 1);
  EXPECT_EQ(t.ignored, std::vector<std::string>{"x"});
}

TEST(LossTable, ReadsJson) {
  const LossTable t = read_loss_table(
      R"({"rows": [{"N": 1e6, "D": 2e7, "loss": 3.5, "lr": 1e-3, "batch": 4096},
                   {"N": 1e6, "D": 2e7, "k": 4, "task_loss": 0.5, "pass": 0.25, "note": 1},
                   {"N": 1e6, "D": 2e7, "k": 8, "task_loss": 0.4, "pass": 0.35}]})",
      "t.json");
  ASSERT_EQ(t.points.size(), 3u);
  EXPECT_EQ(t.points[0].flops, 1.2e14);
  EXPECT_EQ(t.points[0].lr, 1e-3);
  EXPECT_EQ(t.points[1].pass, 0.25);
  EXPECT_EQ(t.points[1].run, t.points[2].run);  // the same model
  EXPECT_EQ(t.runs, 2);
}

TEST(LossTable, RefusesDamagedTables) {
  EXPECT_EQ(fault_of("N,D,loss\n1e6,abc,3\n"),
            "t.csv: row 2: D = abc: expected a number >= 1 and at most 1e+20");
  EXPECT_EQ(fault_of("N,D,loss\n1e6,1e7,-3\n"),
            "t.csv: row 2: loss = -3: expected a number > 0 and at most 10000");
  EXPECT_EQ(fault_of("N,D,loss\n1e6,1e7,nan\n"),
            "t.csv: row 2: loss = nan: expected a number > 0 and at most 10000");
  EXPECT_EQ(fault_of("N,D,loss\n1e6,1e7\n"), "t.csv: row 2: 2 fields; expected 3 as in the header");
  EXPECT_EQ(fault_of("N,N,loss\n"), "t.csv: row 1: two columns N; expected one");
  EXPECT_NE(fault_of("N,loss\n1e6,3\n").find("row 2: only one of N, D and C; expected two of"),
            std::string::npos);
  EXPECT_NE(fault_of("N,D\n1e6,1e7\n").find("row 2: no loss"), std::string::npos);
  EXPECT_NE(fault_of("N,D,pass\n1e6,1e7,0.5\n").find("pass without k"), std::string::npos);
  EXPECT_NE(fault_of("1e6,1e7,3\n").find("not a header"), std::string::npos);
  EXPECT_NE(fault_of("").find("no rows"), std::string::npos);
  EXPECT_NE(fault_of("N,D,loss\n").find("no rows"), std::string::npos);
  EXPECT_NE(fault_of("{\"a\": 1}").find("no list of rows"), std::string::npos);
  EXPECT_NE(fault_of("[1]").find("row 1: 1: expected an object"), std::string::npos);
  EXPECT_NE(fault_of("[{\"N\": {}, \"D\": 1, \"loss\": 1}]").find("row 1: N = {}"), std::string::npos);
  EXPECT_NE(fault_of("[{\"N\": 1, \"params\": 1}]").find("twice"), std::string::npos);
  EXPECT_NE(fault_of("[{\"N\": 1").find("t.csv"), std::string::npos);
  EXPECT_NE(fault_of(std::string("\0\x01\xff", 3)).find("not a header"), std::string::npos);
}

TEST(LossTable, DropsTheWorst) {
  LossTable t = read_loss_table("N,D,loss\n1e6,1e7,3\n1e6,2e7,9\n1e6,3e7,2\n", "t.csv");
  drop_worst(t, 1);
  ASSERT_EQ(t.points.size(), 2u);
  EXPECT_EQ(t.points[1].loss, 2);
  EXPECT_THROW(drop_worst(t, 2), Error);
}

}  // namespace
}  // namespace trireme::test
