// tune: its request, and the run file that it writes.
#pragma once
#include <string>
#include <vector>

#include "cli/tokenize_chat.h"

namespace trireme::cli {

struct TuneRequest {
  std::string model;
  ChatRequest chat;
  std::string out;
  double epochs = 3;
  double lr = 0;                     // 0: kLr, or with adapters kLoraLr
  int64_t rank = 0;                  // rank of adapters; 0: all weights are trained
  double alpha = 0;                  // 0: twice the rank
  std::vector<std::string> targets;  // empty: all
  std::string adapter;               // that training starts from
  int64_t batch = 16, seq_len = 0;
  std::vector<std::string> sets;
  bool json = false;
};

// The run file of a fine-tuning of the Hugging Face folder r.model. Its data is in r.out.
std::string tune_file_text(const TuneRequest& r, int64_t steps);

}  // namespace trireme::cli
