// Where a run is in its data: what checkpoints record, and where a branch continues.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/loader.h"
#include "train/data_identity.h"

namespace trireme {

// The place of the loader, and what the run had consumed there.
struct RunPlace {
  DataPlace loader;
  int64_t samples = 0, tokens = 0;  // sequences and target tokens consumed up to loader.step
  bool operator==(const RunPlace&) const = default;
};

// Adds the place after `step` to a manifest: samples, tokens, and in `state` the samples drawn of each shard.
// The place itself is recorded only by runs that are branches.
void record_place(Manifest&, const RunPlace&, const RunSpec&, const std::vector<int64_t>& drawn);

// The place that the checkpoint's run had. Throws Error (request) naming the manifest if the record is
// broken.
RunPlace place_of(const Checkpoint&);

// Where a branch from the checkpoint continues. `saved` and `run` are the two specs, `now` is the content of
// the branch's data. With the same shards, shares and sequence length the branch takes the samples that
// follow. Otherwise its mixture restarts. A shard that the other run had (the same content) then continues
// after the tokens drawn from it; a new shard starts at its beginning.
RunPlace branch_place(const Checkpoint&, const RunSpec& saved, const RunSpec& run, const DataContent& now);

}  // namespace trireme
