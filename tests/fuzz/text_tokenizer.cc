// A tokenizer.json: what is accepted is written and read back the same, and any text comes back from its ids.
#include "fuzz.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts([&] {
    const Tokenizer t = Tokenizer::parse(fuzz::bytes_of(text), "fuzz.json");
    const std::string json = t.to_json();
    fuzz::expect(Tokenizer::parse(fuzz::bytes_of(json), "again").to_json() == json,
                 "a written tokenizer reads differently");
    for (auto specials : {Specials::recognise, Specials::as_text})
      fuzz::expect(!t.lossless() || t.decode(t.encode(text, specials)) == text,
                   "text does not come back from its ids");
  });
  return 0;
}
