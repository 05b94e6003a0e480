// A tokenizer.json: what is accepted is written and read back the same, and any text comes back from its ids.
// The input is also a text, for a tokenizer that was learned from it.
#include <cstdlib>
#include <span>
#include <string_view>

#include "base/error.h"
#include "text/train_bpe.h"

namespace {

void expect_exact(const trireme::Tokenizer& t, std::string_view text) {
  for (auto specials : {trireme::Specials::recognise, trireme::Specials::as_text})
    if (t.decode(t.encode(text, specials)) != text) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  using namespace trireme;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Tokenizer t = Tokenizer::parse(std::as_bytes(std::span(data, size)), "fuzz.json");
    const std::string json = t.to_json();
    if (Tokenizer::parse(std::as_bytes(std::span(json)), "again").to_json() != json) std::abort();
    expect_exact(t, text);
  } catch (const Error&) {
  }
  expect_exact(train_bpe(std::span(&text, 1), {.vocab_size = 300}), text);
  return 0;
}
