// Two functions by turns on one thread, each with its own stack.
#pragma once
#include <cstddef>
#include <exception>
#include <memory>

namespace trireme {

// For passes over layers: a layer that waits for a collective calls pause(), and the other pass computes
// meanwhile. Which one runs when depends on these calls alone, so ranks that call alike issue collectives in
// the same order.
class TwoPasses {
 public:
  TwoPasses();
  ~TwoPasses();
  TwoPasses(const TwoPasses&) = delete;

  using Function = void (*)(void* of);
  // Runs `first` on the caller's stack and `second` on its own until both have returned; `first` begins. An
  // exception of either leaves run(), after the other one has been unwound.
  void run(Function first, Function second, void* of);
  // Within run(): lets the other function run until it pauses or returns. Elsewhere: no effect.
  void pause();

 private:
  struct Stacks;        // the second's stack, and where each function stands
  struct Abandoned {};  // unwinds the second's stack
  static void begin_second(unsigned high, unsigned low);
  void second();
  void to_second();
  void to_first();

  std::unique_ptr<Stacks> stacks_;  // taken with the first run()
  Function second_function_ = nullptr;
  void* of_ = nullptr;
  bool running_ = false;      // the second has begun and not returned
  bool in_second_ = false;    // which one runs
  bool abandon_ = false;      // the first has failed
  std::exception_ptr error_;  // thrown by the second
};

}  // namespace trireme
