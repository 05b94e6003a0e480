// A Megatron .idx beside a .bin of a size it does not know: all that an accepted one says lies inside the
// .bin.
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "data/indexed_dataset.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  using namespace trireme;
  if (size < 2) return 0;
  const int64_t bin_bytes = data[0] * 4;
  try {
    const IndexView v = IndexView::parse(std::as_bytes(std::span(data + 1, size - 1)), bin_bytes, "fuzz.idx");
    int64_t tokens = 0;
    for (int64_t s = 0; s < v.sequences(); s++) {
      tokens += v.length(s);
      if (v.offset(s) < 0 || v.offset(s) + v.length(s) * size_of(v.type()) > bin_bytes) std::abort();
    }
    for (int64_t d = 0; d < v.documents(); d++)
      if (v.document_begin(d + 1) < v.document_begin(d) || v.document_begin(d + 1) > v.sequences())
        std::abort();
    if (tokens != v.tokens()) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
