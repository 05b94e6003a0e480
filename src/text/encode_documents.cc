#include "text/encode_documents.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "text/encoder.h"

namespace trireme {
namespace {

struct Encoded {
  std::vector<int32_t> ids;
  int64_t bytes = 0;
  std::exception_ptr error;
  bool done = false;
};

void encode_one(Encoder& encoder, int32_t end_of_text, int64_t i, const ReadDocument& read, Specials specials,
                Encoded& out) {
  std::string text = read(i);
  out.ids.clear();
  out.bytes = int64_t(text.size());
  encoder.encode(text, specials, out.ids);
  if (end_of_text >= 0) out.ids.push_back(end_of_text);
}

// Documents go round a ring of slots: workers fill slot i % size once document i - size has been taken.
class Ring {
 public:
  Ring(int64_t documents, int threads) : documents_(documents), slots_(size_t(4 * threads)) {}
  ~Ring() {
    {
      std::lock_guard lock(mutex_);
      documents_ = 0;  // nothing further begins
    }
    room_.notify_all();
    for (std::thread& w : workers_) w.join();
  }
  void start(int threads, const Tokenizer& tokenizer, const ReadDocument& read, Specials specials,
             int32_t end_of_text) {
    try {
      for (int t = 0; t < threads; t++)
        workers_.emplace_back(
            [&, this, specials, end_of_text] { work(tokenizer, read, specials, end_of_text); });
    } catch (const std::system_error& e) {
      run_failed("cannot start {} threads to encode text: {}; ask for fewer", threads, e.what());
    }
  }
  // The next document in order. It is the caller's until the next call.
  Encoded& next() {
    std::unique_lock lock(mutex_);
    if (taken_ >= 0) slot(taken_).done = false;
    taken_++;
    room_.notify_all();
    ready_.wait(lock, [&] { return slot(taken_).done; });
    if (slot(taken_).error) std::rethrow_exception(slot(taken_).error);
    return slot(taken_);
  }

 private:
  Encoded& slot(int64_t i) { return slots_[size_t(i) % slots_.size()]; }

  void work(const Tokenizer& tokenizer, const ReadDocument& read, Specials specials, int32_t end_of_text) {
    Encoder encoder(tokenizer);
    for (;;) {
      int64_t i;
      {
        std::unique_lock lock(mutex_);
        room_.wait(lock, [&] { return begun_ >= documents_ || begun_ < taken_ + int64_t(slots_.size()); });
        if (begun_ >= documents_) return;
        i = begun_++;
      }
      Encoded& out = slot(i);
      try {
        encode_one(encoder, end_of_text, i, read, specials, out);
      } catch (...) {
        out.error = std::current_exception();  // next() throws it in the caller's thread
      }
      std::lock_guard lock(mutex_);
      out.done = true;
      ready_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable room_, ready_;
  int64_t documents_, begun_ = 0, taken_ = -1;
  std::vector<Encoded> slots_;
  std::vector<std::thread> workers_;
};

}  // namespace

EncodeTotals encode_documents(const Tokenizer& tokenizer, int64_t documents, const ReadDocument& read,
                              const TakeTokens& take, const EncodeOptions& options) {
  require(options.threads >= 1, "encode_documents(): at least one thread");
  int32_t end_of_text = options.end_of_text ? tokenizer.end_of_text() : -1;
  EncodeTotals totals;
  auto hand_over = [&](int64_t i, const Encoded& encoded) {
    take(i, encoded.ids);
    totals.documents++, totals.bytes += encoded.bytes, totals.tokens += int64_t(encoded.ids.size());
    if (options.progress) options.progress(totals.documents, totals.bytes, totals.tokens);
  };
  if (options.threads == 1) {
    Encoder encoder(tokenizer);
    Encoded encoded;
    for (int64_t i = 0; i < documents; i++) {
      encode_one(encoder, end_of_text, i, read, options.specials, encoded);
      hand_over(i, encoded);
    }
    return totals;
  }
  Ring ring(documents, options.threads);
  ring.start(options.threads, tokenizer, read, options.specials, end_of_text);
  for (int64_t i = 0; i < documents; i++) hand_over(i, ring.next());
  return totals;
}

}  // namespace trireme
