#include "text/pipeline.h"

#include <memory>

#include "base/error.h"
#include "text/json_fields.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

// A flag of the file: absent or null is the library's default.
bool flag(const Json& v, const char* key, bool if_absent, const char* where) {
  const Json& f = member(v, key);
  if (f.is_null()) return if_absent;
  if (!f.is_boolean()) bad_request("{}.{} is {}, not a boolean", where, key, shown(f));
  return f.get<bool>();
}

std::string text_of(const Json& v, const char* key, const std::string& where) {
  const Json& s = member(v, key);
  if (!s.is_string() || s.get_ref<const std::string&>().empty())
    bad_request("{}.{} is {}, not a text", where, key, shown(s));
  return s.get<std::string>();
}

// {"String": text} of a Replace or Split.
std::string literal_of(const Json& v, const std::string& where) {
  const Json& pattern = member(v, "pattern");
  if (!pattern.is_object() || !pattern.contains("String"))
    bad_request("{}.pattern is {}; only a String is supported", where, shown(pattern));
  return text_of(pattern, "String", where + ".pattern");
}

// The parts of a Sequence, or the thing itself. Deeper nesting than the library writes is refused.
std::vector<const Json*> parts_of(const Json& v, const char* list_key, const char* where) {
  if (v.is_null()) return {};
  if (!is_type(v, "Sequence")) return {&v};
  const Json& list = member(v, list_key);
  if (!list.is_array() || list.size() > 64)
    bad_request("{}.{} is {}, not a list", where, list_key, shown(list));
  std::vector<const Json*> parts;
  for (const Json& part : list) {
    if (is_type(part, "Sequence")) bad_request("{}: a Sequence in a Sequence is not supported", where);
    parts.push_back(&part);
  }
  return parts;
}

void read_normalizer(const Json& root, Pipeline& p) {
  const Json& v = member(root, "normalizer");
  for (const Json* part : parts_of(v, "normalizers", "normalizer")) {
    if (is_type(*part, "NFC")) {
      p.normalizer.add_nfc();
    } else if (is_type(*part, "Prepend")) {
      p.normalizer.add_prepend(text_of(*part, "prepend", "normalizer"));
    } else if (is_type(*part, "Replace")) {
      const Json& to = member(*part, "content");
      if (!to.is_string()) bad_request("normalizer.content is {}, not a text", shown(to));
      p.normalizer.add_replace(literal_of(*part, "normalizer"), to.get<std::string>());
    } else {
      bad_request("normalizer is {}; NFC, Prepend, Replace and a Sequence of these are supported",
                  shown(*part));
    }
  }
}

void read_split(const Json& v, Pipeline& p) {
  const Json& pattern = member(v, "pattern");
  const Json& behavior = member(v, "behavior");
  const bool literal = member(pattern, "String").is_string();
  // Gemma's split at spaces that its normalizer has replaced: it never finds one.
  if (literal && p.normalizer.removes(literal_of(v, "pre_tokenizer"))) return;
  const std::string regex = literal ? std::string() : text_of(pattern, "Regex", "pre_tokenizer.pattern");
  const auto known = known_pattern(regex);
  // Where matches cover every text, to keep the matches and to cut around them is the same.
  const bool keeps_matches = known && behavior == "Removed" && flag(v, "invert", false, "pre_tokenizer");
  if (behavior != "Isolated" && !keeps_matches)
    bad_request("pre_tokenizer Split: behavior {}{} is not supported; Isolated is", shown(behavior),
                member(v, "invert") == true ? " inverted" : "");
  if (literal)
    p.pre_tokenizer.add_literal(literal_of(v, "pre_tokenizer"));
  else if (known)
    p.pre_tokenizer.add(*known);
  else
    p.pre_tokenizer.add_regex(std::make_shared<RegexSplit>(regex, "pre_tokenizer.pattern"));
}

void read_metaspace(const Json& v, Pipeline& p) {
  using Prefix = Pipeline::Prefix;
  p.metaspace = text_of(v, "replacement", "pre_tokenizer");
  const Json& scheme = member(v, "prepend_scheme");
  if (scheme.is_null())  // files of early versions of the library
    p.prefix = flag(v, "add_prefix_space", true, "pre_tokenizer") ? Prefix::always : Prefix::never;
  else if (scheme == "always" || scheme == "first" || scheme == "never")
    p.prefix = scheme == "always" ? Prefix::always : scheme == "first" ? Prefix::first : Prefix::never;
  else
    bad_request("pre_tokenizer.prepend_scheme is {}; always, first and never are supported", shown(scheme));
  if (flag(v, "split", true, "pre_tokenizer")) p.pre_tokenizer.add_before(p.metaspace, false);
}

void read_byte_level(const Json& v, Pipeline& p) {
  p.byte_level = true;
  if (flag(v, "add_prefix_space", true, "pre_tokenizer"))
    bad_request("pre_tokenizer.add_prefix_space is {}; only false is supported",
                shown(member(v, "add_prefix_space")));
  if (flag(v, "use_regex", true, "pre_tokenizer")) p.pre_tokenizer.add(SplitPattern::gpt2);
}

void read_pre_tokenizer(const Json& root, Pipeline& p) {
  const Json& v = member(root, "pre_tokenizer");
  p.byte_level = false;
  const auto parts = parts_of(v, "pretokenizers", "pre_tokenizer");
  for (const Json* part : parts) {
    // After ByteLevel the text is spelled in other characters, and Metaspace puts some in.
    if (p.byte_level || !p.metaspace.empty())
      bad_request("pre_tokenizer: {} after ByteLevel or Metaspace is not supported", shown(*part));
    if (is_type(*part, "ByteLevel"))
      read_byte_level(*part, p);
    else if (is_type(*part, "Split"))
      read_split(*part, p);
    else if (is_type(*part, "Digits"))
      p.pre_tokenizer.add_digits(flag(*part, "individual_digits", false, "pre_tokenizer"));
    else if (is_type(*part, "Metaspace") && parts.size() == 1)
      read_metaspace(*part, p);
    else
      bad_request(
          "pre_tokenizer is {}; ByteLevel, Split, Digits, a Sequence of these, and Metaspace are supported",
          shown(*part));
  }
}

// A decoder of vocabularies of characters. Its parts must stand in the order in which decode() does their
// work.
void read_char_decoder(const Json& v, Pipeline& p) {
  int last = 0;
  auto at_stage = [&](int stage, const Json& part) {
    if (stage < last) bad_request("decoder: {} is not supported at its place", shown(part));
    last = stage;
  };
  for (const Json* part : parts_of(v, "decoders", "decoder")) {
    if (is_type(*part, "Replace")) {
      at_stage(0, *part);
      const Json& to = member(*part, "content");
      if (!to.is_string()) bad_request("decoder.content is {}, not a text", shown(to));
      p.decoder_replaces.emplace_back(literal_of(*part, "decoder"), to.get<std::string>());
    } else if (is_type(*part, "ByteFallback")) {
      at_stage(1, *part);
    } else if (is_type(*part, "Fuse")) {
      at_stage(2, *part);
    } else if (is_type(*part, "Strip")) {
      at_stage(3, *part);
      const Json &start = member(*part, "start"), &stop = member(*part, "stop");
      if (last != 3 || member(*part, "content") != " " || !start.is_number_unsigned() || start > 1000 ||
          stop != 0)
        bad_request("decoder is {}; only spaces at the start are stripped", shown(*part));
      p.decoder_strips += start.get<int>();
    } else {
      bad_request("decoder is {}; Replace, ByteFallback, Fuse and Strip are supported", shown(*part));
    }
  }
}

}  // namespace

Pipeline Pipeline::of(SplitPattern pattern) {
  using Ordered = nlohmann::ordered_json;
  auto byte_level = [](bool use_regex) {
    return Ordered{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
  };
  Pipeline p;
  p.pre_tokenizer.add(pattern);
  p.decoder_json = byte_level(true).dump();
  if (pattern == SplitPattern::gpt2) {
    p.pre_tokenizer_json = p.decoder_json;
    return p;
  }
  const std::string regex(pattern == SplitPattern::llama3 ? kLlama3Pattern : kQwen2Pattern);
  Ordered split = {
      {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
  p.pre_tokenizer_json =
      Ordered{{"type", "Sequence"}, {"pretokenizers", Ordered::array({split, byte_level(false)})}}.dump();
  if (pattern == SplitPattern::qwen2) {
    p.normalizer.add_nfc();
    p.normalizer_json = R"({"type":"NFC"})";
  }
  return p;
}

Pipeline Pipeline::read(const nlohmann::json& root, const nlohmann::ordered_json& as_written) {
  Pipeline p;
  read_normalizer(root, p);
  read_pre_tokenizer(root, p);
  const Json &decoder = member(root, "decoder"), &post = member(root, "post_processor");
  for (auto [key, text] : {std::pair("normalizer", &p.normalizer_json),
                           {"pre_tokenizer", &p.pre_tokenizer_json},
                           {"post_processor", &p.post_processor_json},
                           {"decoder", &p.decoder_json}})
    *text = as_written.contains(key) ? as_written[key].dump() : "null";
  if (!p.byte_level)
    read_char_decoder(decoder, p);
  else if (!decoder.is_null() && !is_type(decoder, "ByteLevel"))
    bad_request("decoder is {}; only ByteLevel or null is supported with a ByteLevel pre_tokenizer",
                shown(decoder));
  for (const Json* part : parts_of(post, "processors", "post_processor"))
    if (!is_type(*part, "ByteLevel") && !is_type(*part, "TemplateProcessing"))
      bad_request("post_processor is {}; ByteLevel, TemplateProcessing and a Sequence of these are kept",
                  shown(*part));
  return p;
}

}  // namespace trireme
