// A cluster file: what is accepted is saved and read back the same.
#include "fuzz.h"
#include "spec/cluster_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  ClusterSpec cluster;
  if (!fuzz::accepts([&] { cluster = parse_cluster(fuzz::text_of(data, size), "fuzz.toml"); })) return 0;
  const std::string saved = save_cluster(cluster);
  fuzz::expect(save_cluster(parse_cluster(saved, "saved.toml")) == saved,
               "a saved cluster reads differently");
  return 0;
}
