// Encodes a stream of documents on several threads, and hands the tokens over in order.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "text/document_stream.h"
#include "text/tokenizer.h"

namespace trireme {

// Takes the ids of the next part of a document; a part that is the last ends its document. Called by the
// caller's thread.
using TakeTokens = std::function<void(const DocumentPart&, std::span<const int32_t>)>;

struct EncodeOptions {
  int threads = 1;           // 1 = all in the caller's thread
  int32_t end_of_text = -1;  // closes every document; -1 = nothing does
  Specials specials = Specials::as_text;
  std::function<void(int64_t bytes, int64_t tokens)> progress;  // bytes of files, after each batch, in order
};
struct EncodeTotals {
  int64_t documents = 0, bytes = 0, tokens = 0;
  int64_t skipped = 0;        // lines left out (DocumentStream::Options::skip_bad_lines)
  std::string first_skipped;  // why, with file and line
};

// The result does not depend on the number of threads. The first error, in order, of reading or take ends the
// work and is thrown; what is before it has been taken. A few batches a thread are in memory at a time.
EncodeTotals encode_documents(const Tokenizer&, DocumentStream&, const TakeTokens&, const EncodeOptions&);

}  // namespace trireme
