// Tables of finished runs: what laws are fitted to.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// A run at its end, or a point of its training curve. 0: the table has no such number.
struct LossPoint {
  double parameters = 0, tokens = 0;  // N, D
  double flops = 0;                   // training FLOPs; 6 N D unless the table has them
  double loss = 0;                    // nats per token
  double lr = 0, batch = 0;           // peak learning rate; tokens per step
  double samples = 0;                 // k
  double task_loss = 0;               // mean over problems of -log(1 - (1 - p)^k)
  double pass = -1;                   // pass@k; below 0: none
  int run = 0;                        // points of one run have one number
};

struct LossTable {
  std::string file;
  std::vector<LossPoint> points;
  std::vector<std::string> ignored;  // columns without a meaning here
  int runs = 0;
};

// The columns and their other names, for messages and help.
std::string loss_columns();

// CSV (comma, semicolon or tab; a header; # begins a comment) or JSON (a list of objects, or an object whose
// "rows" is one). Each row has two of N, D and C, and a loss, a task loss or a pass rate.
// Throws Error (request): one line with file, row, column, value and what is allowed.
LossTable read_loss_table(std::string_view text, const std::string& file);

// Removes the rows with the `n` largest losses.
void drop_worst(LossTable&, int64_t n);

}  // namespace trireme
