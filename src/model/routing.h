// What the routers of a rank decide, and what is known of it afterwards. Where choices come from: the router
// (as ever), or a recording of another run's, so that layouts can be compared at equal choices. On meta there
// are none: ops book what any choices take.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/layer.h"
#include "trace/recorded_rows.h"

namespace trireme {

// Choices by layer, step, and token of the global batch (sequence * seq + position): the same key in every
// layout. Several ranks may replay one recording; each records its own.
class RecordedRouting {
 public:
  struct Place {
    int64_t step, first_token, choices;  // choices: of a token
    // Where ranks have parts of sequences of `seq`: `part` tokens each, which lie in them as `rows` says.
    int64_t part = 0, seq = 0;
    PositionRuns rows = {};
    int64_t token(int64_t n) const { return first_token + (part == 0 ? n : rows.of_sequences(n, part, seq)); }
  };
  void record(const std::string& layer, const Place&, std::span<const int32_t> ids);
  // Fails with layer and token where nothing was recorded.
  void replay(const std::string& layer, const Place&, std::span<int32_t> ids) const;
  void merge(const RecordedRouting&);  // another rank's
  // Tokens whose choices (as sets) differ between the two, and all that both have.
  struct Flips {
    int64_t flipped = 0, tokens = 0;
  };
  Flips flips(const RecordedRouting& other) const;

 private:
  using Token = std::pair<int64_t, int64_t>;  // step, number
  std::map<std::string, std::map<Token, std::vector<int32_t>>> of_layer_;
};

// A layer's part in a step, of one rank or summed over all.
struct LayerRouting {
  std::vector<int64_t> load;  // choices of each expert, dropped ones too
  std::vector<int64_t> rows;  // those of them that are not dropped; of a rank's microbatch alone
  int64_t dropped = 0;        // choices beyond the capacity
  // Of experts over ranks: rows sent to their owners, rows that owners computed, and how many rounds that
  // took (the most of a microbatch).
  int64_t sent = 0, computed = 0, rounds = 0;
  double aux_loss = 0, z_loss = 0;  // what is added to the loss, factors included

  int64_t choices() const;
  double max_load() const;               // of an expert, in means; 1 = balanced
  double max_load(int64_t ranks) const;  // of a rank where so many divide the experts, in means
};

class Routing {
 public:
  enum class Choices : uint8_t { real, recorded, replayed };
  explicit Routing(int64_t layers) : steps_(size_t(layers)) {}

  // recording: filled or read from now on; null with `real`.
  void use(Choices c, RecordedRouting* recording) { choices_ = c, recording_ = recording; }
  Choices choices() const { return choices_; }
  RecordedRouting* recording() const { return recording_; }

  // Forecasts: rows that a run's routers gave experts, in the place of a balanced router's. group: the ranks
  // of ep, of the world, in their order; sequences: of a microbatch of all replicas.
  void expect(std::shared_ptr<const StepRows> rows, std::vector<int> group, int64_t sequences) {
    expected_ = std::move(rows), group_ = std::move(group), sequences_ = sequences;
  }
  // [group, experts]; empty: none are expected. Errors (request): the recording has none of this microbatch.
  std::vector<int64_t> expected(int64_t block, int64_t first_sequence) const;

  // ---- counters of a step: by block, and microbatch by microbatch, so that one run again counts once ----
  void start_step() {
    for (auto& layer : steps_) layer.clear();
  }
  // Of a microbatch, named by its first sequence. choices: of its units' experts over all ranks that share
  // them (global units: what comes before counts too).
  struct Microbatch {
    LayerRouting routing;
    std::vector<double> choices;
  };
  Microbatch& of(int64_t block, int64_t first_sequence) { return steps_.at(size_t(block))[first_sequence]; }
  const std::map<int64_t, Microbatch>& microbatches(int64_t block) const { return steps_.at(size_t(block)); }
  std::vector<LayerRouting> totals(int64_t experts) const;  // of this rank, by block

 private:
  Choices choices_ = Choices::real;
  RecordedRouting* recording_ = nullptr;
  std::shared_ptr<const StepRows> expected_;
  std::vector<int> group_;
  int64_t sequences_ = 1;
  std::vector<std::map<int64_t, Microbatch>> steps_;  // by block, then first sequence
};

// As numbers that add up over ranks, the same many on each, and back. A rank's own rounds stay.
std::vector<double> numbers_of(const std::vector<LayerRouting>& layers);
void put_numbers(std::vector<LayerRouting>& layers, std::span<const double>);

// Summed over ranks, each of which has its own tokens' part.
void sum_over_ranks(Communicator& all, std::vector<LayerRouting>& layers);

}  // namespace trireme
