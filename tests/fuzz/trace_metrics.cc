// metrics.jsonl as an interrupted run left it: opening it at a step keeps the whole lines up to that step, in
// their order, and a second opening changes nothing.
#include "fuzz.h"
#include "trace/metrics.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::Folder folder;
  const fs::path file = folder.put("metrics.jsonl", fuzz::text_of(data, size));
  const int64_t last = size ? data[0] % 16 : 0;
  fuzz::accepts([&] {
    MetricsFile(file, last);
    const std::string kept = read_text(file);
    fuzz::expect(kept.size() <= size, "a file that grew");
    fuzz::expect(kept.empty() || kept.back() == '\n', "half a line is left");
    MetricsFile again(file, last);
    fuzz::expect(read_text(file) == kept, "a second opening drops more");
    again.write({.step = last + 1});
    fuzz::expect(read_text(file).starts_with(kept), "a line was written over");
  });
  return 0;
}
