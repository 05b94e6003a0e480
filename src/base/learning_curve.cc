#include "base/learning_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trireme {
namespace {

constexpr int kLabels = 16;  // characters to the left of the plot

// Writes text into the row, its middle at a column, inside the row; false if it would touch other text.
bool put(std::string& row, int middle, const std::string& text) {
  const int size = int(text.size());
  const int at = std::clamp(middle - size / 2, 0, std::max(0, int(row.size()) - size));
  const int from = std::max(0, at - 1);
  const int to = std::min(int(row.size()), at + size + 1);
  for (int i = from; i < to; i++)
    if (row[size_t(i)] != ' ') return false;
  row.replace(size_t(at), text.size(), text);
  return true;
}

}  // namespace

LearningCurve::LearningCurve(int64_t steps, double low, double high, std::vector<Mark> marks, int rows,
                             int columns)
    : steps_(steps), low_(low), high_(high), marks_(std::move(marks)), rows_(rows), columns_(columns) {
  require(steps >= 1 && rows >= 1 && columns >= 2 && low < high, "LearningCurve: an empty plot");
}

int LearningCurve::column_of(double loss) const {
  const double part = std::clamp((loss - low_) / (high_ - low_), 0.0, 1.0);
  return int(std::lround(part * (columns_ - 1)));
}

std::string LearningCurve::empty_row() const {
  std::string row(size_t(columns_), ' ');
  for (double tick = std::ceil(low_); tick <= high_; tick++) row[size_t(column_of(tick))] = ':';
  for (const Mark& m : marks_) row[size_t(column_of(m.loss))] = '|';
  return row;
}

std::string LearningCurve::header() const {
  std::string numbers(size_t(columns_), ' ');
  std::string names(size_t(columns_), ' ');
  for (double tick = std::ceil(low_); tick <= high_; tick++)
    put(numbers, column_of(tick), fmt::format("{:.0f}", tick));
  std::string rest;  // names without room
  for (const Mark& m : marks_)
    if (!put(names, column_of(m.loss), m.name)) rest += fmt::format("  ({} {:.2f})", m.name, m.loss);
  return fmt::format("{:>6}{:>8}  {}\n{}{}{}", "done", "loss", numbers, std::string(kLabels, ' '), names,
                     rest);
}

std::string LearningCurve::add(int64_t step, double loss) {
  sum_ += loss;
  count_++;
  const auto row_of = [&](int64_t s) { return s * rows_ / steps_; };
  if (step < steps_ && row_of(step) == row_of(step - 1)) return "";
  const double mean = sum_ / double(count_);
  sum_ = 0;
  count_ = 0;
  std::string row = empty_row();
  row[size_t(column_of(mean))] = '*';
  return fmt::format("{:>4} %{:>8.2f}  {}", step * 100 / steps_, mean, row);
}

}  // namespace trireme
