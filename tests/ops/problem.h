// A problem is one line of text: an op and its sizes, "matmul m=65 n=33 k=127 trans_b=1 dtype=bf16".
#pragma once
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "tensor/dtype.h"

namespace trireme::harness {

class Problem {
 public:
  Problem(std::string op, std::string line, std::string place, std::map<std::string, std::string> keys)
      : op(std::move(op)), line(std::move(line)), place(std::move(place)), keys_(std::move(keys)) {}

  const std::string op, line, place;  // place: file:line

  bool has(const std::string& key) const;
  int64_t size(const std::string& key) const;  // bad_request when it is absent or not a whole number
  int64_t size(const std::string& key, int64_t otherwise) const;
  double number(const std::string& key, double otherwise) const;
  bool flag(const std::string& key) const { return size(key, 0) != 0; }
  std::string word(const std::string& key, const std::string& otherwise) const;
  DType dtype(const std::string& key = "dtype") const;  // f32 when absent

  // "for=test,grad,perf": the modes that run this line; test alone when absent.
  bool is_for(std::string_view mode) const;
  // A typed key that nobody asked for is a typo: bad_request. Called once the case is built.
  void refuse_unread() const;

 private:
  const std::string* find(const std::string& key) const;
  std::map<std::string, std::string> keys_;
  mutable std::set<std::string> read_;
};

// How far an output may be from the reference; README.md has the two measures.
struct Bound {
  double nmse = 0, worst = 0;
};

// One file: "bound <dtype> [out=<operand>] [device=<name's beginning>] nmse=<x> worst=<y>" lines, problem
// lines, and comments (#).
class ProblemFile {
 public:
  // device: bounds that name another one do not count.
  ProblemFile(const fs::path&, std::string_view device);
  const std::vector<Problem>& problems() const { return problems_; }
  // The bound of an output: keys nmse= and worst= of the problem line win, then the bound line that names the
  // output, then the one of its type alone. bad_request when there is none.
  Bound bound(const Problem&, const std::string& out, DType) const;

 private:
  fs::path path_;
  std::vector<Problem> problems_;
  std::map<std::pair<std::string, std::string>, Bound> bounds_;  // (dtype, output or "")
};

}  // namespace trireme::harness
