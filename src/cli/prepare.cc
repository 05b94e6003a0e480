#include "cli/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <optional>

#include "base/counted.h"
#include "base/file_kind.h"
#include "base/interrupt.h"
#include "base/say.h"
#include "data/shard_writer.h"
#include "text/encode_documents.h"
#include "text/jsonl.h"
#include "text/train_bpe.h"
#include "text/unicode.h"

namespace trireme::cli {

void leave_if_interrupted() {
  if (interrupt_requested())
    throw Error("interrupted: nothing was written; the same command starts afresh", Fault::interrupted);
}

namespace {

std::string first_bytes(const fs::path& path, size_t most) {
  std::ifstream in(path, std::ios::binary);
  std::string head(most, '\0');
  in.read(head.data(), std::streamsize(most));
  head.resize(size_t(in.gcount()));
  return head;
}
constexpr size_t kHead = 8192;

// Bytes of the byte-order mark at the beginning of UTF-8, which is no part of the text.
int64_t mark_of(std::string_view head) {
  return head.starts_with("\xEF\xBB\xBF") ? 3 : 0;
}

int64_t size_of_file(const fs::path& path) {
  std::error_code error;
  auto size = fs::file_size(path, error);
  if (error) bad_request("cannot read {}: {}", path.string(), error.message());
  return int64_t(size);
}

// Files of text whose first bytes are not UTF-8, such as Latin-1.
struct NotUtf8 {
  int64_t files = 0;
  std::string first;

  void look_at(const fs::path& path, std::string_view head) {
    const bool cut = head.size() == kHead;
    if (is_utf8(head.substr(0, cut ? whole_characters(head) : head.size()))) return;
    if (files++ == 0) first = path.string();
  }
  void tell() const {
    if (files > 0)
      say("note: {} with bytes that are not UTF-8, encoded unchanged; the first: {} (Latin-1 is converted by "
          "iconv -f ISO-8859-1 -t UTF-8 FILE > FILE.utf8)\n",
          counted(files, "file"), visible(first));
  }
};

// A file of a folder. A .json that is not JSON Lines is a text, as source code is.
TextSource source_of(const fs::path& path, std::string name, int64_t bytes, const std::string& key,
                     NotUtf8& not_utf8) {
  const bool json_lines = is_json_lines(path) || looks_like_json_lines(path, key);
  const std::string head = first_bytes(path, kHead);
  if (!json_lines) not_utf8.look_at(path, head);
  return {
      .path = path, .name = std::move(name), .json_lines = json_lines, .begin = mark_of(head), .end = bytes};
}

// A file that the user names.
TextSource source_of(const fs::path& path, const std::string& key, NotUtf8& not_utf8) {
  std::error_code none;
  if (!fs::is_regular_file(path, none))
    bad_request("{} is neither a folder nor a file of text", path.string());
  const std::string head = first_bytes(path, kHead);
  refuse_marked(path, head);
  TextSource source = source_of(path, path.filename().string(), size_of_file(path), key, not_utf8);
  const bool json = path.extension() == ".json" || path.extension() == ".JSON";
  if (json && !source.json_lines) source.json_lines = looks_like_json_lines(path);
  if (json && !source.json_lines)
    bad_request(
        "{} is not JSON Lines, which have one JSON object per line: jq -c '.[]' {} > {}l makes them of a "
        "list",
        path.string(), path.string(), path.string());
  const std::string end = path.extension().string();
  if (end == ".csv" || end == ".tsv" || end == ".CSV" || end == ".TSV")
    say("note: {} is encoded as text, with its separators and header; for one column make JSON Lines of it\n",
        visible(path.string()));
  if (head.find('\0') != std::string::npos)
    say("note: {} has bytes of value 0 and is hardly text; it is encoded all the same\n",
        visible(path.string()));
  return source;
}

// Where a text of one document is divided: the beginning of a line, about `fraction` before its end.
int64_t line_near(const TextSource& s, double fraction) {
  const int64_t near = s.end - int64_t(double(s.end) * fraction);
  std::ifstream in(s.path, std::ios::binary);
  in.seekg(near);
  std::string line;
  constexpr int64_t kLongest = 1 << 20;  // a line longer than this is cut where it is
  for (char c; int64_t(line.size()) < kLongest && in.get(c);) {
    line += c;
    if (c == '\n') return near + int64_t(line.size());
  }
  return near;
}

// As hold_out() does for a corpus: both sides get something.
void hold_out_texts(CorpusTexts& t, double fraction) {
  for (TextSource& s : t.sources) s.held_out = held_out(s.name, fraction);
  if (std::any_of(t.sources.begin(), t.sources.end(), [](const TextSource& s) { return s.json_lines; }))
    return;
  if (t.sources.size() == 1) {
    TextSource tail = t.sources[0];
    t.sources[0].end = tail.begin = line_near(tail, fraction);
    t.sources[0].held_out = false, tail.held_out = true;
    if (tail.begin <= 0 || tail.begin >= tail.end)
      bad_request("{} has {} bytes: too few to hold out {:g} of them; give more text, or --hold-out 0",
                  tail.path.string(), tail.end, fraction);
    t.sources.push_back(tail);
    return;
  }
  auto held =
      std::count_if(t.sources.begin(), t.sources.end(), [](const TextSource& s) { return s.held_out; });
  if (held == 0 || held == ptrdiff_t(t.sources.size())) t.sources.back().held_out = held == 0;
}

DocumentStream::Options options_of(const CorpusTexts& texts) {
  return {.key = texts.key, .hold_out = texts.hold_out, .skip_bad_lines = texts.skip_bad_lines};
}

bool holds_out(const CorpusTexts& texts) {
  return std::any_of(texts.sources.begin(), texts.sources.end(),
                     [&](const TextSource& s) { return s.json_lines ? texts.hold_out > 0 : s.held_out; });
}

void refuse_if_there(const fs::path& shard) {
  for (const char* end : {".bin", ".idx"})
    if (fs::path file = shard.string() + end; fs::exists(file))
      bad_request("{} is of an earlier run, and now nothing is held out: remove it, or choose another --out",
                  file.string());
}

// What a progress line says beside the bar: MB of text a second, and the caller's word.
class Rate {
 public:
  std::string text(int64_t bytes, const std::string& more) const {
    const double s = seconds();
    return fmt::format("{:.1f} MB/s{}", s > 0 ? double(bytes) * 1e-6 / s : 0.0,
                       more.empty() ? "" : "  " + more);
  }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

int64_t CorpusTexts::bytes() const {
  return std::accumulate(sources.begin(), sources.end(), int64_t(0),
                         [](int64_t sum, const TextSource& s) { return sum + s.end - s.begin; });
}

CorpusTexts texts_of(const Corpus& corpus) {
  CorpusTexts t;
  for (const CorpusFile& f : corpus.files)
    t.sources.push_back({.path = corpus.root / f.path, .name = f.path, .end = f.bytes});
  return t;
}

CorpusTexts gather_texts(const std::vector<std::string>& paths, const std::vector<std::string>& extensions,
                         const std::string& key, double hold_out) {
  CorpusTexts t;
  NotUtf8 not_utf8;
  t.key = key, t.hold_out = hold_out;
  CorpusOptions of_folders{.extensions = extensions, .max_file_bytes = INT64_MAX};
  for (std::string& e : of_folders.extensions)
    if (!e.starts_with('.')) e.insert(0, ".");  // as a name's extension is written
  for (const std::string& path : paths) {
    std::error_code none;
    if (!fs::is_directory(path, none)) {
      t.sources.push_back(source_of(path, key, not_utf8));
      continue;
    }
    const Corpus folder = gather_corpus(path, of_folders);
    t.skipped += folder.skipped;
    for (const CorpusFile& f : folder.files)
      t.sources.push_back(source_of(fs::path(path) / f.path, f.path, f.bytes, key, not_utf8));
  }
  not_utf8.tell();
  std::erase_if(t.sources, [](const TextSource& s) { return s.begin >= s.end; });
  if (t.sources.empty()) bad_request("{}: no text in it", fmt::join(paths, ", "));
  if (hold_out > 0) hold_out_texts(t, hold_out);
  return t;
}

void refuse_old_valid(const CorpusTexts& texts, const fs::path& valid) {
  if (!valid.empty() && !holds_out(texts)) refuse_if_there(valid);
}

Tokenizer train_tokenizer(const CorpusTexts& texts, const LearnOptions& options) {
  WordCounts counts(options.pattern);
  {
    DocumentStream stream(texts.sources, Divider(Pipeline::of(options.pattern)), options_of(texts));
    Progress bar("count words", texts.bytes());
    Rate rate;
    count_words(stream, options.threads, counts, [&](int64_t bytes) {
      bar.update(bytes, rate.text(bytes, ""));
      leave_if_interrupted();
    });
    if (counts.dropped())
      bar.note(
          fmt::format("words are many: the rarest, {} of all that were read, were left out to save memory",
                      human_count(double(counts.dropped()))));
  }
  Progress bar("learn merges", options.vocab);
  BpeOptions o;
  o.vocab_size = options.vocab, o.specials = options.specials;
  o.progress = [&](int32_t done, int32_t) {
    bar.update(done);
    leave_if_interrupted();
  };
  Tokenizer t = train_bpe(counts, o);
  bar.update(options.vocab);
  return t;
}

EncodedTexts encode_texts(const Tokenizer& t, const CorpusTexts& texts, const fs::path& train,
                          const fs::path& valid, int threads, int32_t end_of_text,
                          const std::function<void()>& before_commit, const std::string& what) {
  for (const fs::path& p : {train, valid})
    if (p.has_parent_path()) make_folders(p.parent_path());
  refuse_old_valid(texts, valid);
  const uint64_t vocabulary = t.fingerprint();
  ShardWriter train_writer(train, t.vocab_size(), vocabulary);
  std::optional<ShardWriter> valid_writer;
  if (holds_out(texts)) valid_writer.emplace(valid, t.vocab_size(), vocabulary);
  DocumentStream stream(texts.sources, Divider(t), options_of(texts));
  Progress bar(what, texts.bytes());
  Rate rate;
  EncodeOptions o{.threads = threads, .end_of_text = end_of_text, .specials = texts.specials};
  o.progress = [&](int64_t bytes, int64_t tokens) {
    bar.update(bytes, rate.text(bytes, human_count(double(tokens)) + " tokens"));
    leave_if_interrupted();
  };
  EncodedTexts all;
  EncodeTotals totals = encode_documents(
      t, stream,
      [&](const DocumentPart& part, std::span<const int32_t> ids) {
        ShardWriter& writer = part.held_out ? *valid_writer : train_writer;
        Encoded& sum = part.held_out ? all.valid : all.train;
        writer.append(ids);
        if (part.last) writer.end_document();
        sum.documents += part.last, sum.bytes += int64_t(part.bytes), sum.tokens += int64_t(ids.size());
      },
      o);
  bar.finish();
  all.seconds = rate.seconds();
  all.skipped = totals.skipped;
  all.first_skipped = std::move(totals.first_skipped);
  if (all.train.documents == 0)
    bad_request("{}: no document to train on{}", texts.sources[0].path.string(),
                all.skipped > 0
                    ? "; " + counted(all.skipped, "bad line") + " skipped, the first: " + all.first_skipped
                    : "");
  if (valid_writer && all.valid.documents == 0) refuse_if_there(valid);  // few JSON Lines, none of them drawn
  if (before_commit) before_commit();
  train_writer.commit();
  if (all.valid.documents > 0) valid_writer->commit();
  return all;
}

Encoded encode_corpus(const Tokenizer& t, const Corpus& corpus, const fs::path& prefix, int threads,
                      const std::string& what) {
  return encode_texts(t, texts_of(corpus), prefix, {}, threads, t.find_end_of_text().value_or(-1), {}, what)
      .train;
}

}  // namespace trireme::cli
