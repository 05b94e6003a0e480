// Encodes many documents on several threads, and hands them over in their order.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace trireme {

// Document i of many: its text. Called once for each, by any of the threads, at the same time for different
// i.
using ReadDocument = std::function<std::string(int64_t)>;
// Takes document i encoded. Called by the caller's thread, for 0, 1, 2, ... in order.
using TakeTokens = std::function<void(int64_t, std::span<const int32_t>)>;

struct EncodeOptions {
  int threads = 1;          // 1 = all in the caller's thread
  bool end_of_text = true;  // <|endoftext|> closes every document
  Specials specials = Specials::as_text;
  std::function<void(int64_t documents, int64_t bytes, int64_t tokens)>
      progress;  // after each document, in order
};
struct EncodeTotals {
  int64_t documents = 0, bytes = 0, tokens = 0;
};

// The result does not depend on the number of threads. The first error, in document order, of read or take
// ends the work and is thrown; documents before it have been taken. A few documents per thread are in memory
// at a time.
EncodeTotals encode_documents(const Tokenizer&, int64_t documents, const ReadDocument&, const TakeTokens&,
                              const EncodeOptions&);

}  // namespace trireme
