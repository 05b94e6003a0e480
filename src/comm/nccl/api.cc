#include "comm/nccl/api.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace trireme::nccl {
namespace {

template <class F>
void find(void* library, const Api& api, const char* name, F& function, bool needed) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (!function && needed)
    bad_request("train.comm = \"nccl\": {} says it is version {} and has no function {}", api.path,
                version_text(api.version), name);
}

std::unique_ptr<Api> open_file(const std::string& name) {
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    bad_request(
        "train.comm = \"nccl\": {} cannot be opened: {}; it is NVIDIA's libnccl2, version {} or newer, in a "
        "folder that the system or LD_LIBRARY_PATH names",
        name, ::dlerror(), version_text(kOldest));
  auto api = std::make_unique<Api>();
  api->path = name;
  auto version = reinterpret_cast<Result (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  Dl_info where{};
  if (version && ::dladdr(reinterpret_cast<void*>(version), &where) && where.dli_fname)
    api->path = where.dli_fname;
  if (!version || version(&api->version) != kSuccess)
    bad_request("train.comm = \"nccl\": {} does not say which version it is: it is not NCCL", api->path);
  if (api->version < kOldest || api->version >= 30000)
    bad_request("train.comm = \"nccl\": {} is version {}, and {} to 2.x are used", api->path,
                version_text(api->version), version_text(kOldest));
#define TRIREME_NCCL_FIND(type, name, arguments) find(library, *api, "nccl" #name, api->name, true);
  TRIREME_NCCL_FUNCTIONS(TRIREME_NCCL_FIND)
#undef TRIREME_NCCL_FIND
#define TRIREME_NCCL_FIND(type, name, arguments) find(library, *api, "nccl" #name, api->name, false);
  TRIREME_NCCL_OPTIONAL(TRIREME_NCCL_FIND)
#undef TRIREME_NCCL_FIND
  if (!api->CommDeregister) api->CommRegister = nullptr;
  return api;
}

}  // namespace

std::string version_text(int v) {  // before 2.9 it was 2708 for 2.7.8
  if (v < 10000) return fmt::format("{}.{}.{}", v / 1000, v % 1000 / 100, v % 100);
  return fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
}

const Api& open_library(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Api>> open;
  std::lock_guard lock(mutex);
  std::unique_ptr<Api>& api = open[name];
  if (!api) api = open_file(name);
  return *api;
}

}  // namespace trireme::nccl
