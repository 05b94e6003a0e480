#include "base/mapping_table.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace trireme {
namespace {

// A slot is free while `begin` is null, and being written while it is kTaken.
struct Slot {
  std::atomic<const std::byte*> begin{nullptr};
  size_t bytes = 0;
  char path[240] = {};  // as it is printed
  char* whole_path = nullptr;
};
static_assert(std::atomic<const std::byte*>::is_always_lock_free, "a signal handler reads it");

std::array<Slot, 4096> g_slots;
const std::byte g_taken{};
const std::byte* const kTaken = &g_taken;

const Slot* slot_of(const std::byte* address) {
  for (const Slot& s : g_slots) {
    const std::byte* begin = s.begin.load(std::memory_order_acquire);
    if (begin && begin != kTaken && address >= begin && address < begin + s.bytes) return &s;
  }
  return nullptr;
}

void write_to_stderr(const char* text) {
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
}

void on_bus_error(int, siginfo_t* info, void*) {
  const Slot* s = slot_of(static_cast<const std::byte*>(info->si_addr));
  if (!s) {
    ::signal(SIGBUS, SIG_DFL);  // the instruction runs again, and ends the process
    return;
  }
  write_to_stderr("trireme: ");
  write_to_stderr(s->path);
  const auto offset = static_cast<const std::byte*>(info->si_addr) - s->begin.load();
  struct stat now {};
  if (s->whole_path && ::stat(s->whole_path, &now) == 0 && now.st_size > offset) {
    write_to_stderr(
        ": could not be read while the program used it: its disk or network file system reports an error; "
        "start the same command again when that works\n");
    ::_exit(int(Fault::environment));
  }
  write_to_stderr(
      ": the file became shorter, or went away, while the program used it; restore it and start the same "
      "command again\n");
  ::_exit(int(Fault::run));
}

}  // namespace

void add_mapping(const std::byte* begin, size_t bytes, const std::filesystem::path& path) {
  for (Slot& s : g_slots) {
    const std::byte* none = nullptr;
    if (!s.begin.compare_exchange_strong(none, kTaken)) continue;
    s.bytes = bytes;
    const std::string& name = path.native();  // the end of a long one: the file's own name
    const size_t kept = std::min(name.size(), sizeof(s.path) - 1);
    std::memcpy(s.path, name.data() + name.size() - kept, kept);
    s.path[kept] = 0;
    for (char* c = s.path; *c; c++)
      if (static_cast<unsigned char>(*c) < 32 || *c == 127) *c = '?';
    s.whole_path = ::strdup(name.c_str());
    s.begin.store(begin, std::memory_order_release);
    return;
  }
}

void remove_mapping(const std::byte* begin) {
  for (Slot& s : g_slots) {
    const std::byte* expected = begin;
    if (!s.begin.compare_exchange_strong(expected, kTaken)) continue;
    std::free(std::exchange(s.whole_path, nullptr));
    s.begin.store(nullptr, std::memory_order_release);
    return;
  }
}

void report_shrunk_files() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace trireme
