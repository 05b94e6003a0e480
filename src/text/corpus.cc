#include "text/corpus.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <system_error>

#include "base/counted.h"
#include "base/error.h"
#include "base/file_kind.h"

namespace trireme {
namespace {

constexpr int64_t kEnoughSource = int64_t(1) << 20;  // bytes: less is a stripped-down interpreter

bool contains(const std::vector<std::string>& list, const std::string& s) {
  return std::find(list.begin(), list.end(), s) != list.end();
}

enum class Kind { text, binary, unreadable };
Kind kind_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, 8192> head;
  if (!in) return Kind::unreadable;
  in.read(head.data(), head.size());
  if (in.bad()) return Kind::unreadable;
  const std::string_view read(head.data(), size_t(in.gcount()));
  return read.find('\0') == std::string_view::npos && marked_kind(read).empty() ? Kind::text : Kind::binary;
}

void consider(const fs::directory_entry& entry, const CorpusOptions& options, Corpus& corpus) {
  std::error_code error;
  if (!entry.is_regular_file(error)) return;
  if (!options.extensions.empty() && !contains(options.extensions, entry.path().extension().string())) return;
  int64_t bytes = int64_t(entry.file_size(error));
  if (error) {
    corpus.skipped.unreadable++;
    return;
  }
  if (bytes == 0) return;
  if (bytes > options.max_file_bytes) {
    corpus.skipped.large++;
    return;
  }
  Kind kind = kind_of(entry.path());
  corpus.skipped.binary += kind == Kind::binary, corpus.skipped.unreadable += kind == Kind::unreadable;
  if (kind != Kind::text) return;
  corpus.files.push_back({entry.path().lexically_relative(corpus.root).generic_string(), bytes});
  corpus.bytes += bytes;
}

// The version N of a folder named python3.N; -1 for other names.
int minor_version(const std::string& name) {
  constexpr std::string_view kPrefix = "python3.";
  if (!name.starts_with(kPrefix) || name.size() > kPrefix.size() + 3) return -1;
  int n = -1;
  for (char c : name.substr(kPrefix.size())) {
    if (c < '0' || c > '9') return -1;
    n = std::max(n, 0) * 10 + (c - '0');
  }
  return n;
}

bool has_sources(const fs::path& folder) {
  std::error_code error;
  int64_t bytes = 0;
  for (fs::directory_iterator it(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end; it.increment(error)) {
    std::error_code none;
    if (it->path().extension() == ".py" && it->is_regular_file(none)) bytes += int64_t(it->file_size(none));
  }
  return bytes >= kEnoughSource;
}

// First line of what a shell command prints; empty when it fails.
std::string first_line_of(const std::string& command) {
  const std::string out = output_of(command, 4096);
  return out.substr(0, out.find('\n'));
}

}  // namespace

std::string output_of(const std::string& command, size_t most_bytes) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string out(most_bytes, '\0');
  out.resize(pipe ? std::fread(out.data(), 1, out.size(), pipe.get()) : 0);
  return out;
}

SkippedFiles& SkippedFiles::operator+=(const SkippedFiles& o) {
  binary += o.binary, unreadable += o.unreadable, large += o.large;
  return *this;
}

std::string to_text(const SkippedFiles& s) {
  std::vector<std::string> parts;
  if (s.binary > 0)
    parts.push_back(counted(s.binary, "binary file") + " (compressed, tables, or with bytes of value 0)");
  if (s.unreadable > 0) parts.push_back(fmt::format("{} that cannot be read", s.unreadable));
  if (s.large > 0) parts.push_back(fmt::format("{} that are too large", s.large));
  if (parts.empty()) return "";
  return fmt::format("left out: {}", fmt::join(parts, ", "));
}

Corpus gather_corpus(const fs::path& root, const CorpusOptions& options) {
  std::error_code error;
  if (!fs::is_directory(root, error)) bad_request("{} is not a folder of texts", root.string());
  Corpus corpus;
  corpus.root = root;
  fs::recursive_directory_iterator it(root, fs::directory_options::skip_permission_denied, error), end;
  for (; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    std::error_code none;
    bool folder = it->is_directory(none);
    if (name.starts_with('.') || (folder && contains(options.skip_folders, name)))
      it.disable_recursion_pending();
    else if (!folder)
      consider(*it, options, corpus);
  }
  if (error) bad_request("cannot read folder {}: {}", root.string(), error.message());
  if (corpus.files.empty())
    bad_request("{} holds no text file{}", root.string(),
                options.extensions.empty()
                    ? ""
                    : fmt::format(" that ends in {}", fmt::join(options.extensions, " or ")));
  std::sort(corpus.files.begin(), corpus.files.end(),
            [](const CorpusFile& a, const CorpusFile& b) { return a.path < b.path; });
  return corpus;
}

bool held_out(std::string_view relative_path, double fraction) {
  return double(hash64(relative_path.data(), relative_path.size()) >> 11) * 0x1.0p-53 < fraction;
}

std::pair<Corpus, Corpus> hold_out(const Corpus& all, double fraction) {
  if (all.files.size() < 2)
    bad_request("{} holds a single text file; at least 2 are needed, to hold one out", all.root.string());
  Corpus train{.root = all.root}, valid{.root = all.root};
  auto give = [](Corpus& to, const CorpusFile& f) { to.files.push_back(f), to.bytes += f.bytes; };
  for (const CorpusFile& f : all.files) give(held_out(f.path, fraction) ? valid : train, f);
  // A small corpus may fall all on one side: its last file then goes to the other.
  Corpus &full = valid.files.empty() ? train : valid, &empty = valid.files.empty() ? valid : train;
  if (empty.files.empty()) {
    give(empty, full.files.back());
    full.bytes -= full.files.back().bytes;
    full.files.pop_back();
  }
  return {std::move(train), std::move(valid)};
}

fs::path python_stdlib_folder(const fs::path& prefix, const std::string& command) {
  std::vector<std::pair<int, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator it(prefix, error), end; !error && it != end; it.increment(error))
    if (int n = minor_version(it->path().filename().string()); n >= 0 && has_sources(it->path()))
      found.emplace_back(n, it->path());
  if (!found.empty()) return std::max_element(found.begin(), found.end())->second;
  fs::path printed = first_line_of(command);
  if (!printed.empty() && has_sources(printed)) return printed;
  bad_request(
      "found no sources of Python's standard library in {}/python3.*: install bible-kjv or python3 "
      "(Debian: apt install bible-kjv), or name a folder of your own texts with DEMO_TEXT=folder",
      prefix.string());
}

}  // namespace trireme
