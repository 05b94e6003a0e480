// A learning curve as rows of text. Time runs downwards, so that each row can be printed when it is reached
// and none is drawn again:
//
//   done   loss   2.0        3.0        4.0 bigram   5.0      unigram    7.0
//    5 %   6.41   :          :          :   |        :          |    *   :
//   10 %   5.02   :          :          :   |        *          |        :
//   15 %   3.60   :          :     *    :   |        :          |        :
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

class LearningCurve {
 public:
  // A vertical line at a fixed loss.
  struct Mark {
    std::string name;
    double loss = 0;
  };

  // Draws losses from `low` to `high` nats (low < high) over `columns` characters, one row per 1/rows of the
  // steps. Losses outside the range are drawn at its edge.
  LearningCurve(int64_t steps, double low, double high, std::vector<Mark> marks, int rows = 20,
                int columns = 60);

  // The axis: numbers, and below them the names of the marks.
  std::string header() const;
  // Takes the loss of a step (1 to steps, ascending). Returns a row with the mean loss since the last row
  // when one is complete, else "".
  std::string add(int64_t step, double loss);

 private:
  int column_of(double loss) const;
  std::string empty_row() const;

  int64_t steps_;
  double low_;
  double high_;
  std::vector<Mark> marks_;
  int rows_;
  int columns_;
  double sum_ = 0;
  int64_t count_ = 0;
};

}  // namespace trireme
