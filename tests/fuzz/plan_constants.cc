// Constants of one's own (--constants), as `trireme score --fit` writes them and anybody may edit them: what
// is accepted is saved and read back the same.
#include <optional>

#include "fuzz.h"
#include "published/score_fit.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  std::optional<ScoreConstants> c;
  fuzz::accepts([&] { c = parse_constants(fuzz::text_of(data, size), "constants.json"); });
  if (!c) return 0;
  const std::string saved = save_constants(*c);
  fuzz::expect(save_constants(parse_constants(saved, "saved.json")) == saved,
               "saved constants read differently");
  const auto printable_scopes = [](const auto& by_scope) {
    for (const auto& [scope, values] : by_scope)
      for (char byte : scope)
        fuzz::expect(uint8_t(byte) >= 0x20 && byte != 0x7f, "a control byte in a scope");
  };
  printable_scopes(c->fitted), printable_scopes(c->scope_priors);
  return 0;
}
