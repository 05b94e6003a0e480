#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

namespace trireme {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What a full text goes on from.
int64_t reread_tokens(const GenerateOptions& o) {
  return std::max<int64_t>(1, o.context / 2);
}

class Generator {
 public:
  Generator(StageRunner& runner, const Prompts& prompts, const GenerateOptions& o, const GenerateHooks& hooks)
      : runner_(runner), prompts_(prompts), o_(o), hooks_(hooks), sampler_(o.sample) {
    GenerationShape shape = generation_shape(prompts, o);
    runner_.decoder().open_cache(shape.slots, shape.capacity);
    slots_ = size_t(shape.slots);
    texts_.reserve(slots_);
    vocab_ = size_t(runner.run().model.vocab);
    logits_.resize(slots_ * vocab_);
    tokens_.resize(slots_), positions_.resize(slots_);
    held_.assign(slots_, kNoPrompt);
  }

  GenerateStats run() {
    while (begin_texts(), !texts_.empty()) {
      if (hooks_.leave && hooks_.leave()) {
        for (Text& t : texts_) end(t, Finish::interrupted);
        break;
      }
      while (reread_full()) drop_ended();  // the prompt that takes a slot may fill the context too
      if (texts_.empty()) continue;
      decode();
      drop_ended();
    }
    return stats_;
  }

 private:
  // The text in the slot of the same number.
  struct Text {
    size_t prompt = 0;
    std::vector<int32_t> seen;  // prompt and new tokens; all but the last are in the cache ...
    int64_t cached = 0;         // ... as far as the context reaches: so many
    Generated out;
    bool ended = false;
  };

  bool more_prompts() const { return next_ < prompts_.size() && !(hooks_.leave && hooks_.leave()); }

  // Prompts take free slots. One may end at its first token and make room for another.
  void begin_texts() {
    while (texts_.size() < slots_ && more_prompts()) {
      texts_.emplace_back();
      begin_text(texts_.size() - 1);
      drop_ended();
    }
  }

  // The next prompt, in `slot`. A prompt equal to the one before is copied from a slot that still holds it.
  void begin_text(size_t slot) {
    const size_t prompt = next_++;
    texts_[slot] = {.prompt = prompt, .seen = prompts_[prompt], .cached = 0, .out = {}};
    const bool same = o_.share_prompts && read_ != kNoPrompt && prompts_[prompt] == prompts_[read_];
    const auto holder = same ? std::find(held_.begin(), held_.end(), read_) : held_.end();
    if (holder != held_.end()) return share(slot, size_t(holder - held_.begin()));
    read_ = prompt;
    read(slot, o_.context, o_.share_prompts ? &prompt_logits_ : nullptr);
    held_[slot] = prompt;
  }

  // The prompt's keys and values are those of slot `from`, whose text has only added to them.
  void share(size_t slot, size_t from) {
    Text& t = texts_[slot];
    t.cached = std::min(int64_t(t.seen.size()), o_.context);
    const double begin = now_s();
    if (held_[slot] != read_) runner_.decoder().move_text(int64_t(from), int64_t(slot), t.cached);
    held_[slot] = read_;
    stats_.read_s += now_s() - begin;
    stats_.shared_tokens += t.cached;
    draw(t, prompt_logits_);
  }

  // Reads the last `most` tokens of a text into its slot and draws what follows. `keep` gets the logits.
  void read(size_t slot, int64_t most, std::vector<float>* keep = nullptr) {
    Text& t = texts_[slot];
    auto n = std::min(t.seen.size(), size_t(most));
    double begin = now_s();
    std::span<float> row = std::span(logits_).first(vocab_);
    runner_.decoder().prefill(int64_t(slot), std::span(t.seen).last(n), row);
    stats_.read_s += now_s() - begin;
    stats_.read_tokens += int64_t(n);
    t.cached = int64_t(n);
    held_[slot] = kNoPrompt;
    if (keep) keep->assign(row.begin(), row.end());
    draw(t, row);
  }

  void decode() {
    size_t n = texts_.size();
    double begin = now_s();
    for (size_t i = 0; i < n; i++)
      tokens_[i] = texts_[i].seen.back(), positions_[i] = int32_t(texts_[i].cached);
    runner_.decoder().decode(std::span(tokens_).first(n), std::span(positions_).first(n),
                             std::span(logits_).first(n * vocab_));
    for (size_t i = 0; i < n; i++) {
      texts_[i].cached++;
      draw(texts_[i], std::span(logits_).subspan(i * vocab_, vocab_));
    }
    stats_.decoded += int64_t(n);
    stats_.decode_s += now_s() - begin;
  }

  void draw(Text& t, std::span<const float> logits) {
    if (o_.vocab > 0) logits = logits.first(std::min(logits.size(), size_t(o_.vocab)));
    if (hooks_.near_tie && o_.sample.temperature < kGreedy) find_near_tie(t, logits);
    int32_t id = sampler_.next(logits, t.prompt, t.out.tokens.size());
    stats_.new_tokens++;
    if (id == o_.end_of_text) return end(t, Finish::end_of_text);
    t.seen.push_back(id);
    t.out.tokens.push_back(id);
    if (hooks_.token && hooks_.token(t.prompt, id)) return end(t, Finish::stopped);
    if (int64_t(t.out.tokens.size()) >= o_.tokens) end(t, Finish::length);
  }

  void find_near_tie(const Text& t, std::span<const float> logits) const {
    if (logits.size() < 2) return;
    float first = -INFINITY, second = -INFINITY, largest = 0;
    for (const float f : logits) {
      largest = std::max(largest, std::fabs(f));
      second = std::max(second, std::min(first, f));
      first = std::max(first, f);
    }
    if (first - second <= kNearTie * largest) hooks_.near_tie(t.prompt, t.out.tokens.size(), first - second);
  }

  void end(Text& t, Finish why) {
    t.out.finish = why, t.ended = true;
    if (hooks_.done) hooks_.done(t.prompt, t.out);
  }

  // The next prompt takes the slot of a text that has ended: another sample of its prompt finds the keys and
  // values there. If no prompt is left, the last text moves into the slot, so that those that run are always
  // the first ones.
  void drop_ended() {
    for (size_t i = 0; i < texts_.size();) {
      if (!texts_[i].ended) {
        i++;
        continue;
      }
      if (more_prompts()) {
        begin_text(i);
        continue;
      }
      size_t last = texts_.size() - 1;
      if (i < last && !texts_[last].ended)
        runner_.decoder().move_text(int64_t(last), int64_t(i), texts_[last].cached);
      if (i < last) {
        texts_[i] = std::move(texts_[last]);
        held_[i] = held_[last];
      }
      texts_.pop_back();
    }
  }

  // Returns whether a text was full.
  bool reread_full() {
    bool any = false;
    for (size_t i = 0; i < texts_.size(); i++)
      if (texts_[i].cached >= o_.context) {
        stats_.reread++;
        read(i, reread_tokens(o_));
        any = true;
      }
    return any;
  }

  StageRunner& runner_;
  const Prompts& prompts_;
  const GenerateOptions& o_;
  const GenerateHooks& hooks_;
  Sampler sampler_;
  size_t slots_ = 0, vocab_ = 0, next_ = 0;
  std::vector<Text> texts_;
  std::vector<float> logits_, prompt_logits_;
  std::vector<int32_t> tokens_, positions_;
  static constexpr size_t kNoPrompt = size_t(-1);
  size_t read_ = kNoPrompt;   // the prompt that was read last; prompt_logits_ follow it
  std::vector<size_t> held_;  // by slot: the prompt whose keys and values are the first ones there
  GenerateStats stats_;
};

}  // namespace

std::string_view name_of(Finish f) {
  constexpr std::string_view kNames[] = {"length", "end_of_text", "stop", "interrupted"};
  return kNames[size_t(f)];
}

GenerationShape generation_shape(const Prompts& prompts, const GenerateOptions& o) {
  require(o.tokens >= 1 && o.context >= 2 && o.parallel >= 1, "generation of nothing");
  GenerationShape s;
  std::set<int64_t> lengths;
  for (size_t i = 0; i < prompts.size(); i++) {
    auto n = int64_t(prompts[i].size());
    if (n == 0) bad_request("prompt {} has no token: a text needs at least one to go on from", i + 1);
    lengths.insert(std::min(n, o.context));
    // The last new token is never read.
    s.capacity = std::max(s.capacity, std::min(o.context, n + o.tokens - 1));
    if (n + o.tokens - 1 > o.context) lengths.insert(reread_tokens(o));
  }
  s.slots = std::clamp<int64_t>(int64_t(prompts.size()), 1, o.parallel);
  s.prefills.assign(lengths.begin(), lengths.end());
  return s;
}

GenerateStats generate(StageRunner& runner, const Prompts& prompts, const GenerateOptions& o,
                       const GenerateHooks& hooks) {
  return Generator(runner, prompts, o, hooks).run();
}

}  // namespace trireme
