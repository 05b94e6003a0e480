// --set: each line of the input is one, over a run file of defaults.
#include <vector>

#include "fuzz.h"
#include "spec/run_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  std::vector<std::string> sets(1);
  for (char c : fuzz::text_of(data, size)) {
    if (c == '\n')
      sets.emplace_back();
    else
      sets.back() += c;
  }
  const LoadOptions alone{.read_from = false};
  RunSpec run;
  if (!fuzz::accepts([&] { run = parse_run("", "fuzz.toml", sets, alone); })) return 0;
  const std::string saved = save_run(run);
  fuzz::expect(save_run(parse_run(saved, "saved.toml", {}, alone)) == saved, "a saved run reads differently");
  return 0;
}
