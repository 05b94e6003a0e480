// trireme tokenize FOLDER --out DIR: trains (or takes) a tokenizer and encodes text into token shards.
#include "cli/prepare.h"

namespace trireme::cli {
namespace {

struct Request {
  std::string text, out, tokenizer;
  std::vector<std::string> extensions;
  int vocab = 4096, threads = 0;
  double hold_out = 0.05;
};

void tokenize(const Request& r) {
  Corpus all = gather_corpus(r.text, {.extensions = r.extensions});
  fs::path out = r.out;
  make_folders(out);
  auto [train, valid] = r.hold_out > 0 ? hold_out(all, r.hold_out) : std::pair(all, Corpus());
  fmt::print("{}: {} files, {}; {} held out\n", r.text, all.files.size(), human_bytes(all.bytes),
             valid.files.size());
  Tokenizer t = r.tokenizer.empty() ? train_tokenizer(train, r.vocab) : Tokenizer::load(r.tokenizer);
  t.save(out / "tokenizer.json");
  int threads = r.threads > 0 ? r.threads : threads_of(RunSpec());
  Encoded a = encode_corpus(t, train, out / "train", threads);
  fmt::print("{}: {} documents, {} tokens\n", (out / "train").string(), a.documents, a.tokens);
  if (valid.files.empty()) return;
  Encoded b = encode_corpus(t, valid, out / "valid", threads);
  fmt::print("{}: {} documents, {} tokens\n", (out / "valid").string(), b.documents, b.tokens);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("tokenize",
                         "trains a byte-level BPE tokenizer on a folder of text and encodes it into token "
                         "shards\nexample: trireme tokenize src --ext .py --out data");
  auto r = std::make_shared<Request>();
  verb->add_option("TEXT", r->text, "folder of text files, a document each")->required();
  verb->add_option("--out", r->out, "folder for tokenizer.json, train.bin/.idx and valid.bin/.idx")
      ->required();
  verb->add_option("--tokenizer", r->tokenizer, "tokenizer.json to use; default: trains one");
  verb->add_option("--vocab", r->vocab, "tokens of a trained tokenizer")
      ->capture_default_str()
      ->check(CLI::Range(257, 1 << 24));
  verb->add_option("--ext", r->extensions, "only files that end so (may be repeated)");
  verb->add_option("--hold-out", r->hold_out, "share of the files for valid; 0 = none")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.9));
  verb->add_option("--threads", r->threads, "default: the cores this process may use")
      ->check(CLI::Range(1, 65536));
  verb->callback([r] { tokenize(*r); });
}

}  // namespace trireme::cli
