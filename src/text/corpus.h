// A corpus: the text files of a folder, in an order and a division that depend on nothing but their names.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"

namespace trireme {

struct CorpusFile {
  std::string path;  // relative to the root, '/' between folders
  int64_t bytes = 0;
};
// Files whose name fits and that are no document all the same.
struct SkippedFiles {
  int64_t binary = 0, unreadable = 0, large = 0;
  SkippedFiles& operator+=(const SkippedFiles&);
};
// "left out: 2046 binary files (...), 1 that cannot be read"; "" where none is.
std::string to_text(const SkippedFiles&);

struct Corpus {
  fs::path root;
  std::vector<CorpusFile> files;  // by path, byte by byte
  int64_t bytes = 0;
  SkippedFiles skipped;

  std::string read(int64_t file) const { return read_text(root / files[size_t(file)].path); }
};

struct CorpusOptions {
  std::vector<std::string> extensions;  // ".py"; none = every text file
  std::vector<std::string> skip_folders = {"site-packages", "dist-packages"};  // by name, at any depth
  int64_t max_file_bytes = int64_t(64) << 20;
};

// Finds all files below root, except hidden and empty files. A file is also left out if it has a zero byte in
// the first 8 KiB, as git decides it, or the mark of another format (file_kind.h). Does not follow links to
// folders. bad_request if root is not a folder or has no such file.
Corpus gather_corpus(const fs::path& root, const CorpusOptions&);

// Whether a file is held out, from a hash of its relative path: the same file on every machine and in every
// run, whatever else the folder holds.
bool held_out(std::string_view relative_path, double fraction);
// {training files, held-out files}: both have at least one file; bad_request when the corpus has only one.
std::pair<Corpus, Corpus> hold_out(const Corpus&, double fraction);

// Runs a command of the shell. Returns what it prints, cut to most_bytes; "" if it cannot be started.
std::string output_of(const std::string& command, size_t most_bytes);

// Where this machine keeps the sources of Python's standard library: the newest prefix/python3.N with a
// megabyte of them, else what the command prints. bad_request says what to do when there is none.
fs::path python_stdlib_folder(const fs::path& prefix = "/usr/lib",
                              const std::string& command =
                                  "python3 -c 'import sysconfig; "
                                  "print(sysconfig.get_paths()[\"stdlib\"])' 2>/dev/null");

}  // namespace trireme
