// The content of a run's data, as checkpoints record it and starts compare it.
#pragma once
#include <map>

#include "base/json.h"
#include "data/shard_content.h"
#include "spec/run_spec.h"

namespace trireme {

struct DataContent {
  std::vector<ShardContent> train;            // in the order of data.train
  std::map<std::string, ShardContent> valid;  // by name in data.valid; shards that exist
};

// Paths are left out: a folder may move. `valid` has null for a shard that did not exist.
nlohmann::json to_json(const DataContent&, const RunSpec&);
// Throws Error (request), naming `file`, if the text is not of that form.
DataContent data_content_of(const nlohmann::json&, const RunSpec&, const std::string& file);

// Compares the content of the data now with the content recorded in a checkpoint. `run` and `saved` are the
// two specs, `checkpoint` names the record in messages.
// Returns notes: held-out data that has other names and other content.
// Throws Error (request), naming the file, if the training data, or a held-out shard of the same name, has
// other content.
std::vector<std::string> compare_data(const RunSpec& saved, const DataContent& then, const RunSpec& run,
                                      const DataContent& now, const std::string& checkpoint);

}  // namespace trireme
