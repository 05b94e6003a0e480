#include "device/cuda/spins.h"

#include <fmt/format.h>

#include <mutex>

#include "device/cuda/kernel_names.h"

namespace trireme::cuda {
namespace {

constexpr std::string_view kSpinningOps[kSpinners] = {"attention", "attention_backward",
                                                      "attention_backward"};

std::mutex spin_mutex;
SpinReport* all_reports = nullptr;

std::string text_of(uint64_t name) {
  std::string text;
  for (; name; name >>= 8) text += char(name & 0xff);
  return text;
}

}  // namespace

SpinReport* spin_reports(SpinReport* (*make)()) {
  std::lock_guard lock(spin_mutex);
  if (!all_reports) all_reports = make();
  return all_reports;
}

std::string spin_report_text() {
  std::lock_guard lock(spin_mutex);
  for (size_t i = 0; all_reports && i < kSpinners; i++) {
    const SpinReport& r = all_reports[i];
    if (r.filled != 1) continue;
    const std::string who =
        fmt::format("op '{}' (kernel {}): block ({}, {}, {}), warp {}, thread {}, waited {} s for ",
                    kSpinningOps[i], kSm90Kernel, uint32_t(r.block[0]), uint32_t(r.block[1]),
                    uint32_t(r.block[2]), r.thread / 32, uint32_t(r.thread), kSpinNs / 1'000'000'000);
    if (r.name == kCountName)
      return fmt::format("{}the count at address ...{:08x} to become {}", who, uint32_t(r.address),
                         uint32_t(r.wanted));
    return fmt::format("{}barrier '{}' at shared address {:#x} to leave phase {}", who, text_of(r.name),
                       uint32_t(r.address), uint32_t(r.wanted));
  }
  return "";
}

}  // namespace trireme::cuda
