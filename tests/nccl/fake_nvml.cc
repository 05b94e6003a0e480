// NVML's entry points for tests: two GPUs, of which the second has a link that is down.
#include <cstring>

extern "C" {
struct Pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* n) {
  *n = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** device) {
  static char handles[2];
  *device = &handles[i];
  return 0;
}
static unsigned index_of(void* device) {
  void* first = nullptr;
  nvmlDeviceGetHandleByIndex_v2(0, &first);
  return device != first;
}
int nvmlDeviceGetName(void*, char* name, unsigned n) {
  std::strncpy(name, "NVIDIA H100 80GB HBM3", n);
  return 0;
}
struct Memory {
  unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void*, Memory* m) {
  *m = {85520809984ull, 85520809984ull, 0};
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, Pci* p) {
  p->domain = 0, p->bus = index_of(device) ? 0x43 : 0x1b, p->device = 0;
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* up) {
  if (link >= 18) return 2;
  *up = !(index_of(device) == 1 && link == 17);
  return 0;
}
int nvmlDeviceGetNvLinkVersion(void*, unsigned, unsigned* version) {
  *version = 6;  // 4.0
  return 0;
}
}
