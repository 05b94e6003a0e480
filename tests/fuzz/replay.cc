// Every fuzz target in one program, for compilers without libFuzzer: replays a target's inputs, then inputs
// drawn from them. It sees no coverage; `make fuzz` does that.
//
//   fuzz_replay TARGET DRAWN DICTIONARY FOLDER...
//
// The last folder has what long runs learned: some kMostLearned inputs are taken from it, or all if
// TRIREME_ALL_CASES is set. DRAWN inputs follow those of the folders, from a fixed seed. DICTIONARY may not
// exist. The input that ends the program is written into the working folder, to be given to the fuzzer.
#include <sanitizer/asan_interface.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

using Target = int (*)(const uint8_t*, size_t);
using Mutator = size_t (*)(uint8_t*, size_t, size_t, unsigned);
#define TARGET(name)                                  \
  extern "C" int fuzz_##name(const uint8_t*, size_t); \
  extern "C" [[gnu::weak]] size_t mutate_##name(uint8_t*, size_t, size_t, unsigned);
#include "targets.inc"
#undef TARGET

namespace {

namespace fs = std::filesystem;

struct Named {
  std::string_view name;
  Target run;
  Mutator mutate;  // null: as bytes
};
#define TARGET(name) {#name, fuzz_##name, mutate_##name},
const Named kTargets[] = {
#include "targets.inc"
};
#undef TARGET

std::string input, finding;

// Keeps the input at hand. Called once, as the program ends by a finding.
void keep_input() {
  std::ofstream(finding, std::ios::binary) << input;
  std::fprintf(stderr, "fuzz_replay: the input is in %s\n", finding.c_str());
}
void on_abort(int) {
  keep_input();
  std::_Exit(1);
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The words of a libFuzzer dictionary: lines of name="word" or "word", with \xHH, \\ and \".
std::vector<std::string> words_of(const fs::path& dictionary) {
  std::vector<std::string> words;
  std::ifstream in(dictionary);
  for (std::string line; std::getline(in, line);) {
    const size_t begin = line.find('"'), end = line.rfind('"');
    if (line.starts_with('#') || begin == line.npos || end <= begin) continue;
    std::string word;
    for (size_t i = begin + 1; i < end; i++) {
      if (line[i] == '\\' && i + 3 < end && line[i + 1] == 'x') {
        word += char(std::stoi(line.substr(i + 2, 2), nullptr, 16));
        i += 3;
      } else {
        if (line[i] == '\\') i++;
        word += line[i];
      }
    }
    words.push_back(word);
  }
  return words;
}

constexpr size_t kLongest = 4096;  // libFuzzer's own limit
constexpr size_t kMostLearned = 250;
std::vector<std::string> inputs, words;
std::mt19937_64 rng(1);

size_t below(size_t n) {
  return size_t(rng() % n);
}

// One change as libFuzzer makes them: a bit, a byte, a part removed or repeated, a word, a part of another
// input.
void change(std::string& s) {
  const size_t at = below(s.size() + 1), length = std::min(s.size() - at, 1 + below(16));
  switch (below(6)) {
    case 0:
      if (length) s[at] ^= char(1 << below(8));
      break;
    case 1:
      if (length) s[at] = char(below(256));
      break;
    case 2:
      s.erase(at, length);
      break;
    case 3:
      s.insert(at, s.substr(at, length));
      break;
    case 4:
      s.insert(at, words.empty() ? "\xff" : words[below(words.size())]);
      break;
    default: {
      const std::string& other = inputs[below(inputs.size())];
      s.replace(at, length, other.substr(below(other.size() + 1), 1 + below(64)));
    }
  }
}

std::string drawn(Mutator mutate) {
  std::string s = inputs[below(inputs.size())];
  const size_t changes = 1 + below(4);
  for (size_t k = 0; k < changes; k++) {
    if (!mutate) {
      change(s);
      continue;
    }
    const size_t size = s.size();
    s.resize(size + kLongest);
    s.resize(mutate(reinterpret_cast<uint8_t*>(s.data()), size, s.size(), unsigned(rng())));
  }
  if (s.size() > kLongest) s.resize(kLongest);
  return s;
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  std::string s(reinterpret_cast<const char*>(data), size);
  change(s);
  s.resize(std::min(s.size(), max_size));
  std::copy(s.begin(), s.end(), data);
  return s.size();
}

int main(int argc, char** argv) {
  const auto target = std::find_if(std::begin(kTargets), std::end(kTargets),
                                   [&](const Named& t) { return argc > 4 && t.name == argv[1]; });
  if (target == std::end(kTargets)) {
    std::fprintf(stderr, "usage: fuzz_replay TARGET DRAWN DICTIONARY FOLDER...; targets:");
    for (const Named& t : kTargets) std::fprintf(stderr, " %s", t.name.data());
    std::fprintf(stderr, "\n");
    return 2;
  }
  std::vector<fs::path> files;
  for (int i = 4; i < argc; i++) {
    const std::vector<fs::path> more = files_of(argv[i]);
    const size_t every =
        i + 1 < argc || std::getenv("TRIREME_ALL_CASES") ? 1 : 1 + more.size() / kMostLearned;
    for (size_t k = 0; k < more.size(); k += every) files.push_back(more[k]);
  }
  if (files.empty()) {
    std::fprintf(stderr, "fuzz_replay: %s has no inputs\n", argv[1]);
    return 2;
  }
  finding = std::string("finding-") + argv[1];
  std::signal(SIGABRT, on_abort);
  __sanitizer_set_death_callback(keep_input);
  const auto run = [&] {
    // A copy that ends with its last byte, so that the sanitizer sees a read past its end.
    const std::vector<uint8_t> exact(input.begin(), input.end());
    target->run(exact.data(), exact.size());
  };
  for (const fs::path& file : files) {
    inputs.push_back(input = content(file));
    run();
  }
  words = words_of(argv[3]);
  const long count = std::atol(argv[2]);
  for (long i = 0; i < count; i++) {
    input = drawn(target->mutate);
    run();
  }
  std::printf("%s: %zu inputs and %ld drawn from them, no finding\n", argv[1], files.size(), count);
  return 0;
}
