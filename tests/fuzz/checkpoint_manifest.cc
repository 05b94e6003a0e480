// A checkpoint's manifest. The input is the text behind the checksum's line, which is put right here: a
// fuzzer does not guess hashes. With a wrong one everything is refused.
#include "base/file.h"
#include "checkpoint/manifest.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::string_view rest = fuzz::text_of(data, size);
  fuzz::accepts([&] { parse_manifest(rest, "manifest.json"); });
  const std::string text = "{\"xxh3\": \"" + hex64(hash64(data, size)) + "\",\n" + std::string(rest);
  fuzz::accepts([&] {
    const Manifest m = parse_manifest(text, "manifest.json");
    fuzz::expect(parse_manifest(to_text(m), "again") == m, "a written manifest reads differently");
  });
  return 0;
}
