#include "text/document_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "text/corpus.h"
#include "text/jsonl.h"

namespace trireme {

class DocumentStream::File {
 public:
  explicit File(const fs::path& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) system_failed(errno, "cannot read {}: {}", path.string(), std::strerror(errno));
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  // Appends exactly these bytes of the file.
  void read(int64_t begin, size_t bytes, std::string& out) const {
    size_t had = out.size();
    out.resize(had + bytes);
    for (size_t done = 0; done < bytes;) {
      ssize_t n = ::pread(fd_, out.data() + had + done, bytes - done, off_t(begin) + off_t(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) system_failed(errno, "cannot read {}: {}", path_.string(), std::strerror(errno));
      if (n == 0) bad_request("{} became shorter while it was read", path_.string());
      done += size_t(n);
    }
  }

 private:
  fs::path path_;
  int fd_;
};

DocumentStream::DocumentStream(std::vector<TextSource> sources, Divider divider, Options options)
    : sources_(std::move(sources)), divider_(std::move(divider)), options_(std::move(options)) {
  for (const TextSource& s : sources_) total_ += s.end - s.begin;
  if (!sources_.empty()) at_ = sources_[0].begin;
}
DocumentStream::~DocumentStream() = default;

bool DocumentStream::next(DocumentBatch& batch) {
  batch.bytes.clear(), batch.parts.clear();
  while (source_ < sources_.size() && batch.bytes.size() < options_.batch_bytes) {
    const TextSource& s = sources_[source_];
    if (at_ < s.end) {
      if (!file_) file_ = std::make_unique<File>(s.path);
      s.json_lines ? add_lines(batch) : add_text(batch);
    }
    if (at_ < s.end) continue;
    file_.reset();
    line_ = 0;
    if (++source_ < sources_.size()) at_ = sources_[source_].begin;
  }
  return !batch.parts.empty() || source_ < sources_.size();
}

// The rest of the text where it fits into a batch of its own, else as much of it as can be divided off.
void DocumentStream::add_text(DocumentBatch& batch) {
  const TextSource& s = sources_[source_];
  const size_t begin = batch.bytes.size(), left = size_t(s.end - at_);
  DocumentPart part{
      .begin = begin, .source = int32_t(source_), .first = at_ == s.begin, .held_out = s.held_out};
  size_t window = std::min(left, divider_.possible() ? options_.batch_bytes : left);
  for (size_t have = 0, cut = 0;; window = std::min(left, 2 * window)) {
    if (window > options_.longest_bytes)
      bad_request(
          "{}: {} bytes from byte {} on cannot be divided for this tokenizer; {} is the most that is encoded "
          "as one piece",
          s.path.string(), window, at_, options_.longest_bytes);
    file_->read(at_ + int64_t(have), window - have, batch.bytes);
    have = window;
    if (window == left)
      part.bytes = left;
    else if ((cut = divider_.last(std::string_view(batch.bytes).substr(begin))) > 0)
      part.bytes = cut;
    else
      continue;
    break;
  }
  batch.bytes.resize(begin + part.bytes);
  part.last = part.bytes == left;
  at_ += int64_t(part.bytes);
  batch.parts.push_back(part);
}

// Whole lines: what a batch has room for, and one at least.
void DocumentStream::add_lines(DocumentBatch& batch) {
  const TextSource& s = sources_[source_];
  const size_t begin = batch.bytes.size(), left = size_t(s.end - at_);
  size_t window = std::min(left, options_.batch_bytes), have = 0, end = 0;
  for (;; window = std::min(left, 2 * window)) {
    if (window > options_.longest_bytes)
      bad_request("{}, line {}: longer than {} bytes; no document, or in need of cutting", s.path.string(),
                  line_ + 1, options_.longest_bytes);
    file_->read(at_ + int64_t(have), window - have, batch.bytes);
    have = window;
    size_t newline = batch.bytes.rfind('\n');
    end = window == left                                    ? batch.bytes.size()
          : newline == std::string::npos || newline < begin ? 0
                                                            : newline + 1;
    if (end > 0) break;
  }
  batch.bytes.resize(end);
  for (size_t at = begin; at < end;) {
    size_t stop = std::min(batch.bytes.find('\n', at), end);
    line_++;
    if (std::string_view(batch.bytes).substr(at, stop - at).find_first_not_of(" \t\r") !=
        std::string_view::npos)
      batch.parts.push_back({.begin = at,
                             .bytes = stop - at,
                             .source = int32_t(source_),
                             .line = line_,
                             .held_out = held_out(fmt::format("{}:{}", s.name, line_), options_.hold_out)});
    at = stop + 1;
  }
  at_ += int64_t(end - begin);
}

std::string DocumentStream::place_of(const DocumentPart& part) const {
  const std::string path = sources_[size_t(part.source)].path.string();
  return part.line > 0 ? fmt::format("{}, line {}", path, part.line) : path;
}

std::string_view DocumentStream::text(const DocumentBatch& batch, const DocumentPart& part,
                                      std::string& buffer) const {
  std::string_view text = std::string_view(batch.bytes).substr(part.begin, part.bytes);
  if (part.line == 0) return text;
  buffer = json_text(text, options_.key, place_of(part), "; --key names the one that holds the text");
  return buffer;
}

}  // namespace trireme
