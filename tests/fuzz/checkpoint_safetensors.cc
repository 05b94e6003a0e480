// A safetensors file: every entry of an accepted header lies inside the file.
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  using namespace trireme;
  try {
    const SafetensorsHeader h = parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
    for (const SafetensorsEntry& e : h.entries) {
      if (e.begin < 0 || e.begin > e.end || h.data_begin + e.end > int64_t(size)) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
