// Where every byte is: one account per bucket, shared by the arena, the simulator and the metrics.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace trireme {

enum class Bucket : uint8_t { weights, grads, optimizer, activations, comm, scratch, count };
inline constexpr size_t kBuckets = size_t(Bucket::count);
inline constexpr std::array<std::string_view, kBuckets> kBucketNames = {"weights",     "grads", "optimizer",
                                                                        "activations", "comm",  "scratch"};
using BucketBytes = std::array<int64_t, kBuckets>;

// Several bookings in a row, relative to what is booked before them.
struct Bookings {
  BucketBytes net{};       // after all of them
  BucketBytes most{};      // after the ones that give each bucket the most
  int64_t most_total = 0;  // after the one that gives the highest total, and its composition:
  BucketBytes at_most{};
  void add(Bucket b, int64_t bytes) {
    net[size_t(b)] += bytes;
    total_ += bytes;
    most[size_t(b)] = std::max(most[size_t(b)], net[size_t(b)]);
    if (total_ <= most_total) return;
    most_total = total_;
    at_most = net;
  }
  bool operator==(const Bookings&) const = default;

 private:
  int64_t total_ = 0;
};

// Bytes booked now, the peak of each bucket, and the peak of the total with its composition (peaks by bucket
// do not add up to it). Exact requested bytes: alignment and holes are the arena's placement, not booked
// here.
class Ledger {
 public:
  void book(Bucket b, int64_t bytes) {
    now_[size_t(b)] += bytes;
    total_ += bytes;
    peak_[size_t(b)] = std::max(peak_[size_t(b)], now_[size_t(b)]);
    if (total_ > peak_total_) peak_total_ = total_, at_peak_ = now_;
    high_ = std::max(high_, total_);
  }
  void book(const Bookings& all) {
    if (total_ + all.most_total > peak_total_) {
      peak_total_ = total_ + all.most_total;
      for (size_t b = 0; b < kBuckets; b++) at_peak_[b] = now_[b] + all.at_most[b];
    }
    high_ = std::max(high_, total_ + all.most_total);
    for (size_t b = 0; b < kBuckets; b++) {
      peak_[b] = std::max(peak_[b], now_[b] + all.most[b]);
      now_[b] += all.net[b];
      total_ += all.net[b];
    }
  }
  void release(Bucket b, int64_t bytes) { now_[size_t(b)] -= bytes, total_ -= bytes; }

  int64_t now(Bucket b) const { return now_[size_t(b)]; }
  int64_t peak(Bucket b) const { return peak_[size_t(b)]; }
  int64_t total() const { return total_; }
  int64_t peak_total() const { return peak_total_; }
  const BucketBytes& peaks() const { return peak_; }
  const BucketBytes& at_peak() const { return at_peak_; }  // what the peak of the total was made of
  // The most that was booked at once since it was asked before.
  int64_t take_high() { return std::exchange(high_, total_); }
  void restart_peaks() { peak_ = now_, peak_total_ = total_, at_peak_ = now_; }

 private:
  BucketBytes now_{}, peak_{}, at_peak_{};
  int64_t total_ = 0, peak_total_ = 0, high_ = 0;
};

// What one operation does. FLOPs count a multiply-add as 2; bytes are those of its operands touched once.
struct Cost {
  double flops = 0;
  int64_t bytes_read = 0, bytes_written = 0;
  Cost& operator+=(const Cost& c) {
    flops += c.flops, bytes_read += c.bytes_read, bytes_written += c.bytes_written;
    return *this;
  }
  bool operator==(const Cost&) const = default;
};

}  // namespace trireme
