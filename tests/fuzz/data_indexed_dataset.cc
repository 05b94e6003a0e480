// A Megatron .idx beside a .bin of a size it does not know: all that an accepted one says lies inside the
// .bin.
#include "data/indexed_dataset.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  if (size < 2) return 0;
  const int64_t bin_bytes = data[0] * 4;
  fuzz::accepts([&] {
    const IndexView v =
        IndexView::parse(fuzz::bytes_of(fuzz::text_of(data + 1, size - 1)), bin_bytes, "fuzz.idx");
    int64_t tokens = 0;
    for (int64_t s = 0; s < v.sequences(); s++) {
      tokens += v.length(s);
      fuzz::expect(v.offset(s) >= 0 && v.offset(s) + v.length(s) * size_of(v.type()) <= bin_bytes,
                   "a sequence outside the .bin");
    }
    for (int64_t d = 0; d < v.documents(); d++)
      fuzz::expect(v.document_begin(d + 1) >= v.document_begin(d) && v.document_begin(d + 1) <= v.sequences(),
                   "a document outside the sequences");
    fuzz::expect(tokens == v.tokens(), "the sum of tokens is wrong");
  });
  return 0;
}
