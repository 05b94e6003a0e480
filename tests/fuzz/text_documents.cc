// A file of documents, read in batches of a few bytes. A text: its parts are the whole, and so are their ids.
// JSON Lines: each line is a document or refused. The first byte says which, of which tokenizer, and how
// large a batch is.
#include <vector>

#include "fuzz.h"
#include "text/document_stream.h"
#include "text/train_bpe.h"

namespace {

trireme::Tokenizer learned(trireme::SplitPattern pattern) {
  const std::string_view text =
      "the cat sat on the mat; the cats' hats, 1234 of them.\n\n  def f(x): return x\n";
  trireme::WordCounts words(pattern);
  words.add(text);
  return trireme::train_bpe(words, {.vocab_size = 300});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  if (size == 0) return 0;
  static const fuzz::Folder folder;
  static const Tokenizer tokenizers[] = {learned(SplitPattern::gpt2), learned(SplitPattern::llama3),
                                         learned(SplitPattern::qwen2)};
  const Tokenizer& tokenizer = tokenizers[data[0] / 2 % 3];
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  const bool json = data[0] & 1;
  const fs::path file = folder.put(json ? "documents.jsonl" : "document.txt", text);
  fuzz::accepts([&] {
    TextSource source;
    source.path = file, source.name = "document", source.json_lines = json, source.end = int64_t(text.size());
    DocumentStream stream({source}, Divider(tokenizer), {.batch_bytes = size_t(data[0]) + 1});
    std::string all, buffer;
    std::vector<int32_t> ids;
    DocumentBatch batch;
    while (stream.next(batch))
      for (const DocumentPart& part : batch.parts) {
        fuzz::expect(part.begin + part.bytes <= batch.bytes.size(), "a part outside its batch");
        if (json) {
          fuzz::accepts([&] { stream.text(batch, part, buffer); });
          continue;
        }
        const std::string_view piece = stream.text(batch, part, buffer);
        all += piece;
        for (int32_t id : tokenizer.encode(piece)) ids.push_back(id);
      }
    if (json) return;
    fuzz::expect(all == text, "the parts of a text are not the text");
    fuzz::expect(ids == tokenizer.encode(text), "a text in parts has other ids than the whole");
  });
  return 0;
}
