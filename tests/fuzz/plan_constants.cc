// Constants of one's own (--constants), as `trireme score --fit` writes them and anybody may edit them: what
// is accepted is saved and read back the same.
#include "fuzz.h"
#include "plan/score_fit.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::accepts([&] {
    const ScoreConstants c = parse_constants(fuzz::text_of(data, size), "constants.json");
    const std::string saved = save_constants(c);
    fuzz::expect(save_constants(parse_constants(saved, "saved.json")) == saved,
                 "saved constants read differently");
    for (const auto& [scope, values] : c.fitted)
      for (char byte : scope)
        fuzz::expect(uint8_t(byte) >= 0x20 && byte != 0x7f, "a control byte in a scope");
  });
  return 0;
}
