// A tokenizer.json: what is accepted is written and read back the same, any text comes back from its ids, and
// divided where it may be it has the ids of the whole. "@b" and "@c" in the input stand for the 256 tokens of
// bytes, as ByteLevel and as byte_fallback spell them: seeds stay short, and changes meet something else.
#include <fmt/format.h>

#include <vector>

#include "fuzz.h"
#include "text/divide.h"
#include "text/encoder.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

std::string with_bytes(std::string_view text) {
  static const auto tokens = [](bool byte_level) {
    std::string out;
    for (int b = 0; b < 256; b++) {
      const std::string_view byte(reinterpret_cast<const char*>(&b), 1);
      const std::string spelled = byte_level ? trireme::spell_bytes(byte) : fmt::format("<0x{:02X}>", b);
      const bool escaped = spelled == "\"" || spelled == "\\";
      out += fmt::format("{}\"{}{}\":{}", b ? "," : "", escaped ? "\\" : "", spelled, b);
    }
    return out;
  };
  static const std::string spelled = tokens(true), numbered = tokens(false);
  std::string out;
  for (size_t at = 0; at < text.size(); at++) {
    const std::string_view here = text.substr(at, 2);
    const bool stands = (here == "@b" || here == "@c") && out.size() < 65536;
    out += stands ? here == "@b" ? spelled : numbered : std::string(1, text[at]);
    at += stands;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts([&] {
    const Tokenizer t = Tokenizer::parse(fuzz::bytes_of(with_bytes(text)), "fuzz.json");
    const std::string json = t.to_json();
    fuzz::expect(Tokenizer::parse(fuzz::bytes_of(json), "again").to_json() == json,
                 "a written tokenizer reads differently");
    const Divider divider(t);
    const size_t cut = divider.last(text);
    for (auto specials : {Specials::recognise, Specials::as_text}) {
      const std::vector<int32_t> ids = t.encode(text, specials);
      fuzz::expect(!t.lossless() || t.decode(ids) == text, "text does not come back from its ids");
      if (cut == 0) continue;
      std::vector<int32_t> parts = t.encode(text.substr(0, cut), specials);
      Encoder(t).encode(text.substr(cut), specials, parts, Place::continues);
      fuzz::expect(parts == ids, "a text in parts has other ids than the whole");
    }
  });
  return 0;
}
