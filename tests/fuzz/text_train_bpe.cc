// A corpus of any bytes: a tokenizer is learned from it, and gives every text back.
#include "fuzz.h"
#include "text/train_bpe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const auto [corpus, text] = fuzz::halves(data, size);
  fuzz::accepts([&, corpus = corpus, text = text] {
    const Tokenizer t = train_bpe(std::span(&corpus, 1), {.vocab_size = 300});
    for (std::string_view s : {corpus, text})
      for (auto specials : {Specials::recognise, Specials::as_text})
        fuzz::expect(t.decode(t.encode(s, specials)) == s, "text does not come back from its ids");
  });
  return 0;
}
