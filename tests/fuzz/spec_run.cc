// A run file: what is accepted is saved and read back the same.
#include "fuzz.h"
#include "spec/run_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const LoadOptions alone{.read_from = false};
  RunSpec run;
  if (!fuzz::accepts([&] { run = parse_run(fuzz::text_of(data, size), "fuzz.toml", {}, alone); })) return 0;
  const std::string saved = save_run(run);
  fuzz::expect(save_run(parse_run(saved, "saved.toml", {}, alone)) == saved, "a saved run reads differently");
  return 0;
}
