// JSON Lines: every document is its text, or one clear line says which is not. A line that another reader of
// JSON takes has the same text here.
#include "base/json.h"
#include "fuzz.h"
#include "text/json_line.h"
#include "text/jsonl.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::string_view input = fuzz::text_of(data, size);
  // JSON has no raw NUL, but the other reader takes one for the end of its input.
  const bool readable = input.find('\0') == input.npos;
  const auto other = nlohmann::json::parse(readable ? input : std::string_view{}, nullptr, false);
  const JsonLine line = read_json_line(input, "text");
  if (other.is_object()) {
    fuzz::expect(line.error.empty(), "an object is refused");
    fuzz::expect(line.has_key == other.contains("text"), "a key is seen differently");
    if (line.is_string) fuzz::expect(other["text"] == line.text, "a text is read differently");
  } else {
    fuzz::expect(other.is_discarded() || !line.error.empty(), "a value that is not an object is read");
  }
  static const fuzz::Folder folder;
  const fs::path file = folder.put("corpus.jsonl", fuzz::text_of(data, size));
  fuzz::accepts([&] {
    const JsonLines lines(file);
    int64_t bytes = 0;
    for (int64_t i = 0; i < lines.documents(); i++)
      fuzz::accepts([&] { bytes += int64_t(lines.read(i).size()); });
    // No escape of JSON is shorter than what it stands for.
    fuzz::expect(bytes <= lines.bytes(), "more text than the file has bytes");
  });
  return 0;
}
