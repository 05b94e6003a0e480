// Windows that hold whole documents: data.documents = "whole".
//
// A document of n tokens takes n - 1 places: its last token is only a target. Documents are packed by best
// fit in order of falling length; documents of equal length in order of the shard. In a window, documents are
// in order of the shard, and windows are in order of their first documents. A document of more than seq_len +
// 1 tokens is cut to its first seq_len + 1. A document of one token has no target and is left out.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/token_shard.h"
#include "mesh/shape.h"

namespace trireme {

class WholeWindows {
 public:
  // Requires shard.know_documents(). Takes 16 bytes a document and 8 a window.
  WholeWindows(const TokenShard& shard, int64_t seq_len);

  int64_t count() const { return int64_t(first_.size()) - 1; }
  // The documents of a window: tokens [begin, end) of the concatenation are its inputs, and the tokens one
  // place later their targets.
  std::span<const Range> pieces(int64_t window) const;
  int64_t targets(const TokenShard&, int64_t window) const;
  Range tokens(int64_t window) const;  // from its first document to the end of its last
  std::string note() const;            // how full the windows are, and the documents that were cut

 private:
  std::vector<Range> pieces_;
  std::vector<size_t> first_;  // piece of each window, and the end
  int64_t seq_len_;
  int64_t cut_ = 0;         // documents
  int64_t cut_tokens_ = 0;  // tokens of them that are in no window
  int64_t left_out_ = 0;    // documents of one token
};

}  // namespace trireme
