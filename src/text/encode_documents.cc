#include "text/encode_documents.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "text/encoder.h"
#include "text/in_order.h"

namespace trireme {
namespace {

struct EncodedBatch {
  DocumentBatch batch;
  std::vector<int32_t> ids;
  std::vector<size_t> ends;  // in ids, of each part
};

void encode_batch(const DocumentStream& stream, Encoder& encoder, const EncodeOptions& o, EncodedBatch& b) {
  b.ids.clear(), b.ends.clear();
  std::string buffer;
  for (const DocumentPart& part : b.batch.parts) {
    const std::string_view text = stream.text(b.batch, part, buffer);
    try {
      encoder.encode(text, o.specials, b.ids, part.first ? Place::begins : Place::continues);
    } catch (const Error& e) {
      throw Error(fmt::format("{}: {}", stream.place_of(part), e.what()), e.fault);
    }
    if (part.last && o.end_of_text >= 0) b.ids.push_back(o.end_of_text);
    b.ends.push_back(b.ids.size());
  }
}

}  // namespace

EncodeTotals encode_documents(const Tokenizer& tokenizer, DocumentStream& stream, const TakeTokens& take,
                              const EncodeOptions& options) {
  EncodeTotals totals;
  auto worker = [&]() -> InOrder<EncodedBatch>::Work {
    auto encoder = std::make_shared<Encoder>(tokenizer);
    return [&stream, &options, encoder](EncodedBatch& b) { encode_batch(stream, *encoder, options, b); };
  };
  InOrder<EncodedBatch>::run(
      options.threads, [&](EncodedBatch& b) { return stream.next(b.batch); }, worker,
      [&](EncodedBatch& b) {
        size_t begin = 0;
        for (size_t i = 0; i < b.ends.size(); begin = b.ends[i++]) {
          take(b.batch.parts[i], std::span(b.ids).subspan(begin, b.ends[i] - begin));
          totals.documents += b.batch.parts[i].last;
        }
        totals.bytes += int64_t(b.batch.bytes.size()), totals.tokens += int64_t(b.ids.size());
        if (options.progress) options.progress(totals.bytes, totals.tokens);
      });
  return totals;
}

}  // namespace trireme
