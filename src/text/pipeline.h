// What stands around the merges in a tokenizer.json: normalizer, pre-tokenizer, decoder and post-processor.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace trireme {

struct Pipeline {
  Normalizer normalizer;
  // Spaces become `metaspace`, and a piece that does not begin with one may get one before it (the peer's
  // Metaspace).
  enum class Prefix { never, first, always };
  std::string metaspace;  // empty = spaces stay
  Prefix prefix = Prefix::never;
  PreTokenizer pre_tokenizer;
  bool byte_level = true;  // the vocabulary is of bytes; else of characters, with <0x00> to <0xFF> for others

  // How the bytes of a token come from its spelling, where the vocabulary is of characters.
  std::vector<std::pair<std::string, std::string>> decoder_replaces;
  int decoder_strips = 0;  // spaces at the beginning of a decoded text that go

  // The sections as the file has them; the post-processor is kept and never applied.
  std::string normalizer_json = "null", pre_tokenizer_json, post_processor_json = "null", decoder_json;

  // Byte-level, no normalizer, one of the known patterns: what train_bpe() learns for.
  static Pipeline of(SplitPattern);
  // From a tokenizer.json; bad_request names what is not supported. Messages are without the file's name.
  // as_written: the same sections with their keys in the file's order, which is kept.
  static Pipeline read(const nlohmann::json& root, const nlohmann::ordered_json& as_written);
};

}  // namespace trireme
