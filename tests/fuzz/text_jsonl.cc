// JSON Lines: every document is its text, or one clear line says which is not.
#include "fuzz.h"
#include "text/jsonl.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::Folder folder;
  const fs::path file = folder.put("corpus.jsonl", fuzz::text_of(data, size));
  fuzz::accepts([&] {
    const JsonLines lines(file);
    int64_t bytes = 0;
    for (int64_t i = 0; i < lines.documents(); i++)
      fuzz::accepts([&] { bytes += int64_t(lines.read(i).size()); });
    // No escape of JSON is shorter than what it stands for.
    fuzz::expect(bytes <= lines.bytes(), "more text than the file has bytes");
  });
  return 0;
}
