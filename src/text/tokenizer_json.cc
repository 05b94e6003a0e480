// tokenizer.json, the file of the `tokenizers` library: read with every field checked, and written.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/json_depth.h"
#include "base/printable.h"
#include "text/json_fields.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace trireme {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

class Reader {
 public:
  // sections: the sections around the model, their keys in the order of the file.
  Reader(const Json& root, const Ordered& sections, std::string_view name)
      : root_(root), sections_(sections), name_(name) {}

  Tokenizer read() {
    if (!root_.is_object()) fail("is not a JSON object");
    refuse_unless_null("truncation"), refuse_unless_null("padding");
    read_pipeline();
    const Json& model = member(root_, "model");
    if (!model.is_object()) fail("model is {}, not an object", shown(model));
    check_model(model);
    read_added();
    read_vocab(member(model, "vocab"));
    number_added();
    read_merges(member(model, "merges"));
    try {
      return Tokenizer(std::move(parts_));
    } catch (const Error& e) {
      fail("{}", e.what());
    }
  }

 private:
  template <class... A>
  [[noreturn]] void fail(fmt::format_string<A...> f, A&&... a) const {
    bad_request("{}: {}", name_, fmt::format(f, std::forward<A>(a)...));
  }
  void refuse_unless_null(const char* key) const {
    if (const Json& v = member(root_, key); !v.is_null())
      fail("{} is {}; only null is supported", key, shown(v));
  }
  void read_pipeline() {
    try {
      parts_.pipeline = Pipeline::read(root_, sections_);
    } catch (const Error& e) {
      fail("{}", e.what());
    }
  }
  bool flag(const Json& v, const char* key, const std::string& where) const {
    const Json& f = member(v, key);
    if (!f.is_null() && !f.is_boolean()) fail("{}{} is {}, not a boolean", where, key, shown(f));
    return f == true;
  }

  void check_model(const Json& model) {
    // Files of early versions of the library have no type: BPE is what has merges.
    const Json& type = member(model, "type");
    if (type.is_null() ? !model.contains("merges") : type != "BPE")
      fail("model.type is {}; only BPE is supported", shown(type));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& v = member(model, key);
      if (!v.is_null() && v != "") fail("model.{} is {}; only null is supported", key, shown(v));
    }
    if (const Json& v = member(model, "dropout"); !v.is_null() && v != 0)
      fail("model.dropout is {}; only null is supported", shown(v));
    const bool fallback = flag(model, "byte_fallback", "model.");
    if (!fallback && !parts_.pipeline.byte_level)
      fail("pre_tokenizer is {}: without ByteLevel only models with byte_fallback are supported",
           shown(member(root_, "pre_tokenizer")));
    if (fallback && parts_.pipeline.byte_level)
      fail("model.byte_fallback is true with a ByteLevel pre_tokenizer; only one of both is supported");
    parts_.ignore_merges = flag(model, "ignore_merges", "model.");
    parts_.fuse_unk = flag(model, "fuse_unk", "model.");
    if (const Json& v = member(model, "unk_token"); v.is_string())
      parts_.unknown = v.get<std::string>();
    else if (!v.is_null())
      fail("model.unk_token is {}, not a token", shown(v));
  }

  void read_added() {
    const Json& list = member(root_, "added_tokens");
    if (list.is_null()) return;
    if (!list.is_array()) fail("added_tokens is {}, not a list", shown(list));
    for (const Json& v : list) {
      if (!v.is_object() || !member(v, "content").is_string() || !member(v, "id").is_number_integer())
        fail("added token {} has no content or no id", shown(v));
      if (v["content"].get_ref<const std::string&>().empty()) fail("added token {} is empty", shown(v["id"]));
      const std::string where = "added token " + shown(v["content"]) + ": ";
      AddedToken t{.content = v["content"].get<std::string>(), .id = id_of(v["id"])};
      t.special = flag(v, "special", where), t.normalized = flag(v, "normalized", where);
      t.single_word = flag(v, "single_word", where);
      t.lstrip = flag(v, "lstrip", where), t.rstrip = flag(v, "rstrip", where);
      if (auto [other, is_new] = added_ids_.emplace(t.content, t.id); !is_new)
        fail("added token {} is there twice, with ids {} and {}", in_quotes(t.content), other->second, t.id);
      parts_.added.push_back(std::move(t));
    }
  }
  // Gives added tokens the ids that the library gives them, which does not read theirs: the id of
  // model.vocab, else the next one after all tokens. A file whose id is another one is wrong for one of both
  // programs.
  void number_added() {
    int64_t next = int64_t(ids_.size());
    for (AddedToken& t : parts_.added) {
      if (auto found = ids_.find(t.content); found != ids_.end())
        t.id = found->second;
      else if (t.id != next)
        fail(
            "added token {} has id {}, but tokenizers gives it id {}: model.vocab does not have it, and ids "
            "of "
            "such tokens follow those before them; add it to model.vocab with id {}",
            in_quotes(t.content), t.id, next, t.id);
      next = std::max<int64_t>(next, t.id + 1);
    }
    std::stable_sort(parts_.added.begin(), parts_.added.end(),
                     [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
    if (auto found = ids_.find(parts_.unknown); found != ids_.end()) parts_.unknown_id = found->second;
  }
  int32_t id_of(const Json& v) const {
    // A number above int64 reads as negative, which no id is.
    int64_t id = v.is_number_integer() ? v.get<int64_t>() : -1;
    if (id < 0 || id >= kMostIds) fail("token id {} is not between 0 and {}", shown(v), kMostIds - 1);
    return int32_t(id);
  }

  void read_vocab(const Json& vocab) {
    if (!vocab.is_object() || vocab.empty()) fail("model.vocab is {}, not an object of tokens", shown(vocab));
    int32_t last = 0;
    for (const auto& [spelled, value] : vocab.items()) last = std::max(last, id_of(value));
    parts_.tokens.resize(size_t(last) + 1);
    ids_.reserve(vocab.size());
    for (const auto& [spelled, value] : vocab.items()) {
      int32_t id = id_of(value);
      if (const std::string& other = parts_.tokens[size_t(id)]; !other.empty())
        fail("model.vocab: two tokens have id {}: {} and {}", id, in_quotes(other), in_quotes(spelled));
      if (spelled.empty()) fail("model.vocab: token {} is empty", id);
      std::string& bytes = parts_.tokens[size_t(id)];
      if (added_ids_.contains(spelled) || !parts_.pipeline.byte_level)
        bytes = spelled;
      else if (!unspell_bytes(spelled, bytes))
        fail("model.vocab: token {} is not spelled in byte-level characters", in_quotes(spelled));
      ids_.emplace(spelled, id);
    }
  }

  // A merge is "left right" or ["left", "right"]; its result is the joined token, which must be there.
  void read_merges(const Json& merges) {
    if (!merges.is_array()) fail("model.merges is {}, not a list", shown(merges));
    parts_.merges.reserve(merges.size());
    for (const Json& v : merges) {
      std::string left, right;
      if (v.is_string()) {
        const auto& both = v.get_ref<const std::string&>();
        size_t space = both.find(' ');
        if (space == std::string::npos) fail("merge {} is not two tokens", shown(v));
        left = both.substr(0, space), right = both.substr(space + 1);
      } else if (v.is_array() && v.size() == 2 && v[0].is_string() && v[1].is_string()) {
        left = v[0].get<std::string>(), right = v[1].get<std::string>();
      } else {
        fail("merge {} is not two tokens", shown(v));
      }
      auto id = [&](const std::string& token) {
        auto it = ids_.find(token);
        if (it == ids_.end()) fail("merge {}: {} is not in model.vocab", shown(v), in_quotes(token));
        return it->second;
      };
      parts_.merges.push_back({id(left), id(right), id(left + right)});
    }
  }

  const Json& root_;
  const Ordered& sections_;
  std::string_view name_;
  Tokenizer::Parts parts_;
  std::unordered_map<std::string, int32_t> added_ids_, ids_;  // by content; by spelling in model.vocab
};

// Ordered looks a key up among all before it, so what is long is passed over.
Ordered sections_of(std::string_view text) {
  return Ordered::parse(text, [](int depth, Ordered::parse_event_t event, Ordered& key) {
    return depth != 1 || event != Ordered::parse_event_t::key || (key != "model" && key != "added_tokens");
  });
}

// Reads eos_token of a file in the folder of a tokenizer.json: a text, or an added token with its content.
// "": no file, or none in it.
std::string named_end_in(const fs::path& path) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return "";
  const std::string text = read_text(path);
  if (json_depth(text) > kMostJsonDepth)
    bad_request("{}: JSON nested deeper than {} levels", path.string(), kMostJsonDepth);
  const Json config = Json::parse(text, nullptr, false);
  if (!config.is_object()) bad_request("{} is not a JSON object", path.string());
  const Json& end = member(config, "eos_token");
  const Json& content = end.is_object() ? member(end, "content") : end;
  return content.is_string() ? content.get<std::string>() : "";
}

}  // namespace

Tokenizer Tokenizer::parse(std::span<const std::byte> bytes, std::string_view name) {
  auto text = reinterpret_cast<const char*>(bytes.data());
  if (json_depth({text, bytes.size()}) > kMostJsonDepth)
    bad_request("{}: JSON nested deeper than {} levels", name, kMostJsonDepth);
  Json root;
  Ordered sections;
  try {
    root = Json::parse(text, text + bytes.size());
    sections = sections_of({text, bytes.size()});
  } catch (const Json::exception& e) {
    bad_request("{} is not JSON: {}", name, printable(e.what()));
  }
  return Reader(root, sections, name).read();
}

Tokenizer Tokenizer::load(const fs::path& path) {
  MappedFile file(path);
  Tokenizer t = parse(file.bytes(), path.string());
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
    if (t.named_end_of_text_.empty()) t.named_end_of_text_ = named_end_in(path.parent_path() / name);
  return t;
}

std::string Tokenizer::to_json() const {
  std::vector<std::string> spelled;
  bool spaces = false;  // in a token: then "left right" would not say where left ends
  for (int32_t id = 0; id < vocab_size(); id++) {
    const std::string& token = tokens_[size_t(id)];
    spelled.push_back(pipeline_.byte_level && !literal_[size_t(id)] ? spell_bytes(token) : token);
    spaces = spaces || (in_model_[size_t(id)] && spelled.back().find(' ') != std::string::npos);
  }
  Ordered added = Ordered::array();
  for (const AddedToken& t : added_)
    added.push_back({{"id", t.id},
                     {"content", t.content},
                     {"single_word", t.single_word},
                     {"lstrip", t.lstrip},
                     {"rstrip", t.rstrip},
                     {"normalized", t.normalized},
                     {"special", t.special}});
  // ordered_json looks a key up among all before it; made as text, a large vocabulary stays quick.
  std::string vocab, merges;
  for (int32_t id = 0; id < vocab_size(); id++)
    if (in_model_[size_t(id)])
      vocab +=
          fmt::format("{}      {}: {}", vocab.empty() ? "" : ",\n", Json(spelled[size_t(id)]).dump(), id);
  for (const Merge& m : merges_) {
    const std::string &left = spelled[size_t(m.left)], &right = spelled[size_t(m.right)];
    merges += fmt::format("{}      {}", merges.empty() ? "" : ",\n",
                          spaces ? Json{left, right}.dump() : Json(left + ' ' + right).dump());
  }
  return fmt::format(
      "{{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": {},\n"
      "  \"normalizer\": {},\n  \"pre_tokenizer\": {},\n  \"post_processor\": {},\n  \"decoder\": {},\n"
      "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": {},\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": {},\n"
      "    \"byte_fallback\": {},\n    \"ignore_merges\": {},\n    \"vocab\": {{\n{}\n    }},\n"
      "    \"merges\": [\n{}\n    ]\n  }}\n}}\n",
      added.dump(), pipeline_.normalizer_json, pipeline_.pre_tokenizer_json, pipeline_.post_processor_json,
      pipeline_.decoder_json, unknown_.empty() ? "null" : Json(unknown_).dump(), fuse_unk_,
      !pipeline_.byte_level, ignore_merges_, vocab, merges);
}

void Tokenizer::save(const fs::path& path) const {
  write_text_atomic(path, to_json());
}

std::string Tokenizer::config_json(int64_t max_positions) const {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"model_max_length", max_positions},
                                   {"clean_up_tokenization_spaces", false}};
  if (auto end = find_end_of_text())
    for (const char* key : {"bos_token", "eos_token", "unk_token"}) config[key] = tokens_[size_t(*end)];
  return config.dump(2) + "\n";
}

}  // namespace trireme
