// trireme tokenize TEXT... --out DIR: trains (or takes) a tokenizer and encodes text into token shards.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/counted.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/say.h"
#include "cli/prepare.h"
#include "cli/tokenize_chat.h"

namespace trireme::cli {
namespace {

struct TokenizeRequest {
  std::vector<std::string> texts, extensions, specials;
  std::string out, tokenizer, key = "text", pattern = "gpt2";
  std::optional<std::string> end_of_text;
  bool special_tokens = false, skip_bad_lines = false;
  int vocab = 4096, threads = 0;
  double hold_out = 0.05;
  ChatRequest chat;
  std::vector<std::string> given;  // of --key, --skip-bad-lines and --ext, those on the command line
};

// Each of these options is for texts of one kind.
void note_unused(const TokenizeRequest& r, const CorpusTexts& texts) {
  std::error_code none;
  const bool lines = std::any_of(texts.sources.begin(), texts.sources.end(),
                                 [](const TextSource& s) { return s.json_lines; });
  const bool folders =
      std::any_of(r.texts.begin(), r.texts.end(), [&](const auto& t) { return fs::is_directory(t, none); });
  for (const std::string& option : r.given) {
    const bool of_folders = option == "--ext";
    if (!(of_folders ? folders : lines))
      say("note: {}: not used, since no TEXT is {}\n", option, of_folders ? "a folder" : "JSON Lines");
  }
}

SplitPattern pattern_of(const std::string& name) {
  return name == "llama3" ? SplitPattern::llama3 : name == "qwen2" ? SplitPattern::qwen2 : SplitPattern::gpt2;
}

// The token that closes every document: the one asked for, or the tokenizer's own; -1: none is wanted.
int32_t end_of(const TokenizeRequest& r, const Tokenizer& t) {
  if (!r.end_of_text) {
    if (auto id = t.find_end_of_text()) return *id;
    const std::string& named = t.named_end_of_text();
    bad_request(
        "{}: {}; --end-of-text TOKEN names the token that closes a document, --end-of-text \"\" uses none",
        r.tokenizer,
        named.empty() ? "no token of a known name, and no tokenizer_config.json in its folder, ends a text"
                      : fmt::format("it does not have the eos_token {:?} of its folder", named));
  }
  if (r.end_of_text->empty()) return -1;
  auto id = t.find_added(*r.end_of_text);
  if (!id) bad_request("--end-of-text {:?} is not an added token of the tokenizer", *r.end_of_text);
  return *id;
}

// Writes the name of the token that ends a text, which tokenizer.json does not have, for later runs. Keeps
// the rest of the tokenizer_config.json in the folder of the given tokenizer.
void save_config(const TokenizeRequest& r, const Tokenizer& t, int32_t end, const fs::path& out) {
  const fs::path config = out / "tokenizer_config.json", given = fs::path(r.tokenizer).parent_path();
  std::error_code none;
  if (!r.tokenizer.empty() && fs::equivalent(given.empty() ? "." : given, out, none)) return;
  const bool has_given = !r.tokenizer.empty() && fs::is_regular_file(given / "tokenizer_config.json", none);
  const bool plain = Tokenizer::load(out / "tokenizer.json").find_end_of_text().value_or(-1) == end;
  if (plain && !has_given) return;
  nlohmann::ordered_json text = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (has_given) text = nlohmann::ordered_json::parse(read_text(given / "tokenizer_config.json"));
  if (end >= 0)
    text["eos_token"] = std::string(t.token(end));
  else
    text.erase("eos_token");
  write_text_atomic(config, text.dump(2) + "\n");
}

Tokenizer learn(const TokenizeRequest& r, const CorpusTexts& texts, int threads) {
  LearnOptions o{.vocab = r.vocab, .pattern = pattern_of(r.pattern), .threads = threads};
  if (r.end_of_text) {
    o.specials.clear();
    if (!r.end_of_text->empty()) o.specials = {*r.end_of_text};
  }
  for (const std::string& s : r.specials) {
    if (s.empty() || std::find(o.specials.begin(), o.specials.end(), s) != o.specials.end())
      bad_request("--special {:?} is empty or there twice", s);
    o.specials.push_back(s);
  }
  make_folders(r.out);
  AtomicFile(fs::path(r.out) / "tokenizer.json");  // a place that cannot be written ends it before it learns
  return train_tokenizer(texts, o);
}

// Shards know the tokenizer that made them, and so do models that were trained on them.
void note_replaced(const fs::path& file, const Tokenizer& by) {
  std::error_code none;
  if (!fs::is_regular_file(file, none)) return;
  try {
    if (Tokenizer::load(file).fingerprint() == by.fingerprint()) return;
  } catch (const Error&) {
    return;  // nothing works with a broken one
  }
  say("note: {}: replaced a different tokenizer; shards and models made with that one no longer fit this "
      "folder\n",
      file.string());
}

// A token that is rarely seen is hardly learned.
void note_few(const TokenizeRequest& r, const Tokenizer& t, int64_t tokens) {
  constexpr double kFew = 20;
  const double each = double(tokens) / t.vocab_size();
  if (r.tokenizer.empty() && each < kFew)
    say("note: {} tokens to train on for a vocabulary of {}, {:.1f} of each on average; give more text, or a "
        "smaller --vocab\n",
        tokens, t.vocab_size(), each);
}

void tokenize(const TokenizeRequest& r) {
  install_interrupt_handlers();
  CorpusTexts texts = gather_texts(r.texts, r.extensions, r.key, r.hold_out);
  note_unused(r, texts);
  texts.skip_bad_lines = r.skip_bad_lines;
  texts.specials = r.special_tokens ? Specials::recognise : Specials::as_text;
  const fs::path out = r.out;
  refuse_old_valid(texts, out / "valid");
  std::optional<Tokenizer> given;
  if (!r.tokenizer.empty()) end_of(r, given.emplace(Tokenizer::load(r.tokenizer)));  // wrong ones end it here
  const std::string skipped = to_text(texts.skipped);
  say("{}, {}{}{}\n", counted(texts.sources.size(), "file"), human_bytes(texts.bytes()),
      skipped.empty() ? "" : "; ", skipped);
  const int threads = r.threads > 0 ? r.threads : threads_of(RunSpec());
  const Tokenizer t = given ? std::move(*given) : learn(r, texts, threads);
  const int32_t end = end_of(r, t);
  const EncodedTexts done = encode_texts(t, texts, out / "train", out / "valid", threads, end, [&] {
    note_replaced(out / "tokenizer.json", t);
    t.save(out / "tokenizer.json");
    save_config(r, t, end, out);
  });
  print_text("tokenizer: {}, {} tokens{}\n", (out / "tokenizer.json").string(), t.vocab_size(),
             r.tokenizer.empty() && t.vocab_size() < r.vocab
                 ? fmt::format(" (not {}: the text has no more pairs to join)", r.vocab)
                 : "");
  if (end < 0)
    print_text("documents: no token closes them\n");
  else
    print_text("documents: closed by {} (id {})\n", printable(t.token(end)), end);
  if (done.skipped > 0)
    print_text("skipped: {}; the first: {}\n", counted(done.skipped, "bad line"), done.first_skipped);
  auto report = [&](const char* name, const Encoded& e) {
    print_text("{}: {}, {} tokens\n", (out / name).string(), counted(e.documents, "document"), e.tokens);
  };
  report("train", done.train);
  if (done.valid.documents > 0)
    report("valid", done.valid);
  else if (r.hold_out > 0)
    say("note: no document was held out (--hold-out {:g} of {}), so there is no {}; give a larger share "
        "or more documents\n",
        r.hold_out, done.train.documents, (out / "valid").string());
  note_few(r, t, done.train.tokens);
  const int64_t bytes = done.train.bytes + done.valid.bytes;
  print_text("encoded {} in {}: {:.1f} MB/s on {} thread{}\n", human_bytes(bytes),
             human_seconds(done.seconds), double(bytes) * 1e-6 / std::max(done.seconds, 1e-9), threads,
             threads == 1 ? "" : "s");
}

}  // namespace

void add_tokenize(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "tokenize",
      "trains a byte-level BPE tokenizer on text and encodes it into token shards; or encodes with a "
      "tokenizer.json that is there\nexample: trireme tokenize src notes.txt corpus.jsonl --out data");
  auto r = std::make_shared<TokenizeRequest>();
  verb->add_option(
      "TEXT", r->texts,
      "folders of text files (a document each), text files, and JSON Lines (a document per line) under "
      "any name; of any size");
  verb->add_option("--out", r->out, "folder for tokenizer.json, train.bin/.idx and valid.bin/.idx")
      ->required();
  verb->add_option("--tokenizer", r->tokenizer, "tokenizer.json to use; default: trains one");
  verb->add_option(
          "--chat", r->chat.files,
          "in place of TEXT: JSON Lines of conversations (\"messages\", and \"tools\"), or of \"prompt\" and "
          "\"completion\"; writes a loss mask too (may be repeated)")
      ->allow_extra_args(false)
      ->needs(verb->get_option("--tokenizer"));
  verb->add_option("--chat-template", r->chat.chat_template,
                   "Jinja file that renders conversations; default: that of the tokenizer's folder")
      ->needs(verb->get_option("--chat"));
  verb->add_option("--vocab", r->vocab, "tokens of a trained tokenizer")
      ->capture_default_str()
      ->check(CLI::Range(257, 1 << 24));
  verb->add_option("--pattern", r->pattern, "how a trained tokenizer cuts words: gpt2, llama3 or qwen2")
      ->capture_default_str()
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen2"}));
  verb->add_option("--special", r->specials,
                   "a special token of a trained tokenizer, beside the one that ends a text "
                   "(may be repeated)")
      ->allow_extra_args(false);
  verb->add_option(
      "--end-of-text", r->end_of_text,
      "token that closes every document, \"\": none; default: eos_token of the tokenizer's folder, else "
      "<|endoftext|>, <|end_of_text|>, </s> or <eos>");
  verb->add_flag("--special-tokens", r->special_tokens,
                 "special tokens in a text are tokens; default: they are text");
  verb->add_flag("--skip-bad-lines", r->skip_bad_lines,
                 "leaves out JSON Lines that cannot be read or encoded, and counts them; default: the first "
                 "is an error");
  for (const char* of_trained : {"--vocab", "--pattern", "--special"})
    verb->get_option(of_trained)->excludes("--tokenizer");
  verb->add_option("--key", r->key, "of JSON Lines: the key of the text")->capture_default_str();
  verb->add_option("--ext", r->extensions,
                   "of folders: only files that end so, such as .md (may be repeated)")
      ->allow_extra_args(false);
  verb->add_option("--hold-out", r->hold_out, "share of the documents for valid; 0 = none")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.9));
  verb->add_option("--threads", r->threads, "default: the cores this process may use")
      ->check(CLI::Range(1, 65536));
  verb->callback([r, verb] {
    for (const char* option : {"--key", "--skip-bad-lines", "--ext"})
      if (verb->count(option) > 0) r->given.emplace_back(option);
    if (r->chat.files.empty()) {
      if (r->texts.empty()) bad_request("tokenize: no TEXT, and no --chat FILE");
      return tokenize(*r);
    }
    if (!r->texts.empty()) bad_request("tokenize: give TEXT or --chat, not both");
    for (const char* option : {"--key", "--ext", "--special-tokens"})
      if (verb->count(option) > 0) bad_request("{}: not used with --chat", option);
    r->chat.out = r->out;
    r->chat.tokenizer = r->tokenizer;
    r->chat.end_of_text = r->end_of_text;
    r->chat.hold_out = r->hold_out;
    r->chat.skip_bad_lines = r->skip_bad_lines;
    tokenize_chat(r->chat);
  });
}

}  // namespace trireme::cli
