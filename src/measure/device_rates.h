// What a device reaches from outside, by the host's clock: for one that runs behind its launches.
#pragma once
#include <cstdint>

#include "device/device.h"

namespace trireme {

struct DeviceRates {
  double f32 = 0, bf16 = 0;  // FLOP/s of a product of square matrices of normals; 0 = the type is not native
  double memory = 0;         // bytes/s read and written by a copy
  double to_host = 0, from_host = 0;  // bytes/s, each alone; 0 = its memory is the host's
};
struct DeviceRatesRequest {
  int64_t side = 8192;                 // of the matrices
  int64_t copied = int64_t(1) << 30;   // bytes of a copy in its memory
  int64_t moved = int64_t(256) << 20;  // bytes of a transfer
  double seconds = 0.2;                // of each, about
};
DeviceRates measure_rates(Device&, const DeviceRatesRequest& = {});

// Of a launch that is waited for: seconds beyond those of one of many that are not.
double waiting_s(Device&);

}  // namespace trireme
