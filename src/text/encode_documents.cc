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
  std::vector<bool> skipped;
  std::string first_skipped;
};

void encode_part(const DocumentStream& stream, const DocumentPart& part, Encoder& encoder,
                 const EncodeOptions& o, EncodedBatch& b, std::string& buffer) {
  const std::string_view text = stream.text(b.batch, part, buffer);
  try {
    encoder.encode(text, o.specials, b.ids, part.first ? Place::begins : Place::continues);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", stream.place_of(part), e.what()), e.fault);
  }
  if (part.last && o.end_of_text >= 0) b.ids.push_back(o.end_of_text);
}

void encode_batch(const DocumentStream& stream, Encoder& encoder, const EncodeOptions& o, EncodedBatch& b) {
  b.ids.clear();
  b.ends.clear();
  b.first_skipped.clear();
  b.skipped.assign(b.batch.parts.size(), false);
  std::string buffer;
  for (size_t i = 0; i < b.batch.parts.size(); i++) {
    const size_t before = b.ids.size();
    try {
      encode_part(stream, b.batch.parts[i], encoder, o, b, buffer);
    } catch (const Error& e) {
      if (!stream.may_skip(b.batch.parts[i])) throw;
      b.ids.resize(before);
      b.skipped[i] = true;
      if (b.first_skipped.empty()) b.first_skipped = e.what();
    }
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
        if (totals.first_skipped.empty()) totals.first_skipped = b.first_skipped;
        for (size_t i = 0; i < b.ends.size(); begin = b.ends[i++]) {
          totals.skipped += b.skipped[i];
          if (b.skipped[i]) continue;
          take(b.batch.parts[i], std::span(b.ids).subspan(begin, b.ends[i] - begin));
          totals.documents += b.batch.parts[i].last;
        }
        totals.bytes += int64_t(b.batch.bytes.size()), totals.tokens += int64_t(b.ids.size());
        if (options.progress) options.progress(totals.bytes, totals.tokens);
      });
  return totals;
}

}  // namespace trireme
