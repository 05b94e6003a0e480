// A Hugging Face config.json, from whoever wrote it.
#include <string_view>

#include "base/error.h"
#include "spec/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  try {
    trireme::parse_hf_config({reinterpret_cast<const char*>(data), size}, "config.json");
  } catch (const trireme::Error&) {
  }
  return 0;
}
