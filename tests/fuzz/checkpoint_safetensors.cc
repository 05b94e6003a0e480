// A safetensors file: every entry of an accepted header lies inside the file, and its bytes can be read.
#include "checkpoint/safetensors.h"
#include "fuzz.h"
#include "safetensors.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return trireme::fuzz::mutate_safetensors(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::string_view text = fuzz::text_of(data, size);
  bool header = fuzz::accepts([&] {
    const SafetensorsHeader h = parse_safetensors(fuzz::bytes_of(text), "fuzz.safetensors");
    for (const SafetensorsEntry& e : h.entries)
      fuzz::expect(e.begin >= 0 && e.begin <= e.end && h.data_begin + e.end <= int64_t(size),
                   "a tensor outside the file");
  });
  static const fuzz::Folder folder;
  const fs::path path = folder.put("fuzz.safetensors", text);
  bool file = fuzz::accepts([&] {
    const SafetensorsFile f(path);
    unsigned sum = 0;
    for (const SafetensorsEntry& e : f.header().entries) {
      fuzz::expect(f.find(e.name) == &e, "a name that finds another tensor");
      for (std::byte b : f.bytes(e)) sum += unsigned(b);
    }
    volatile unsigned keep = sum;
    (void)keep;
  });
  fuzz::expect(header || !file, "a file that was accepted with a header that is not");
  return 0;
}
