// A run file: what is accepted is saved and read back the same.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "spec/run_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  using namespace trireme;
  const LoadOptions alone{.read_from = false};
  RunSpec run;
  try {
    run = parse_run({reinterpret_cast<const char*>(data), size}, "fuzz.toml", {}, alone);
  } catch (const Error&) {
    return 0;
  }
  const std::string saved = save_run(run);
  if (save_run(parse_run(saved, "saved.toml", {}, alone)) != saved) std::abort();
  return 0;
}
