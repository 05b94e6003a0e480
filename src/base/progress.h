// What long work shows: one redrawn line on a terminal, plain lines in a pipe. And numbers as people read
// them.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace trireme {

std::string human_bytes(int64_t bytes);     // "999 B", "1.50 kB", "12.0 GB": units of 1000
std::string exact_bytes(int64_t bytes);     // "999 bytes", "1500 bytes (1.50 kB)": for what must add up
std::string human_seconds(double seconds);  // "340 us", "1.20 s", "3 min 05 s", "2 h 05 min", "4 d 3 h"
std::string human_count(double n);          // "999", "1.25 k", "10.3 M", "7.00 B", "2.10 T": k = 1000

// On a terminal, a bar, the percentage, the caller's text and the time left, redrawn in place:
//   train [=========>          ]  47 %  loss 3.214  11.2 k tokens/s  2 min 10 s left
// elsewhere the same without the bar, as lines that are at least line_every_s apart, or one each line_every
// of the work (the first and the last always come). Where a terminal is narrow the bar gives way, then the
// end of the text; the time left stays. The time left is that of the work since the first update, so it comes
// with the second: what begins slowly (memory that is touched first, a cache that fills) is no measure of the
// rest. Used by one thread; writes nothing but what it was asked to, and ends its line when it goes.
class Progress {
 public:
  struct Options {
    int64_t begin = 0;  // work that an earlier run did: it counts in the bar, not in the speed
    double line_every_s = 10;
    int64_t line_every = 0;  // of the work; 0 = by time, as what is told while none is done
    double redraw_every_s = 0.1;
    std::FILE* out = stderr;
    int terminal = -1;            // 1 or 0; -1 asks the file
    int columns = 0;              // 0 asks the terminal
    double (*now_s)() = nullptr;  // monotonic seconds; the system's by default
  };
  Progress(std::string what, int64_t total) : Progress(std::move(what), total, Options{}) {}
  Progress(std::string what, int64_t total, Options);
  Progress(const Progress&) = delete;
  ~Progress();  // as finish()

  void update(int64_t done, std::string_view text = {});
  void note(std::string_view line);  // a line of its own that stays, above the bar
  void finish();                     // shows the last update, whatever its time, and ends the line

 private:
  std::string line(int columns) const;  // 0: no terminal, no bar
  void redraw();

  std::string what_, text_;
  int64_t total_, done_;
  Options options_;
  int64_t first_done_ = 0;  // at the first update
  double first_s_ = 0, shown_s_ = -1e300;
  bool updated_ = false, shown_ = true, finished_ = false;
};

}  // namespace trireme
