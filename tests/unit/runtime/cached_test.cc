// The key/value cache: reading a prompt and decoding token by token gives the logits of the training forward
// over the whole text; texts share passes without a trace.
#include <gtest/gtest.h>

#include "tiny.h"

namespace trireme {
namespace {

using test::tiny_run;
using Values = std::vector<float>;

// Weights large enough that attention matters to the logits.
RunSpec run_of(const std::string& arch, const std::string& compute) {
  RunSpec run = tiny_run(arch, compute, 1);
  run.model.init_std = 0.2;
  run.data.seq_len = run.model.max_positions = 71;  // more rows than the kernel of decoding takes
  return run;
}

struct Runner {
  std::unique_ptr<Device> device;
  std::unique_ptr<StageRunner> runner;
  Runner(const RunSpec& run, int64_t arena, int threads = 1)
      : device(make_device("cpu", {.threads = threads})) {
    runner = std::make_unique<StageRunner>(run, RunMode::infer, *device, arena);
    runner->init_weights();
  }
  StageRunner* operator->() { return runner.get(); }
};

std::vector<int32_t> random_text(const RunSpec& run, int64_t n, uint64_t which) {
  std::vector<int32_t> t(static_cast<size_t>(n));
  for (size_t i = 0; i < t.size(); i++)
    t[i] = int32_t(below(rng_key(which, 0, "text"), i, uint64_t(run.model.vocab)));
  return t;
}

// Largest difference next to the typical logit.
double worst(std::span<const float> got, std::span<const float> want) {
  double most = 0, square = 0;
  for (size_t i = 0; i < want.size(); i++) {
    most = std::max(most, std::fabs(double(got[i]) - want[i]));
    square += double(want[i]) * want[i];
  }
  return most / std::sqrt(square / double(want.size()));
}

struct Case {
  const char *arch, *compute;
};
class Cached : public testing::TestWithParam<Case> {};

double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::sqrt(sum);
}

// Logits of all of a text but the first `first` - 1 tokens: `first` are read, the others decoded.
Values cached_logits(StageRunner& r, std::span<const int32_t> text, int64_t first) {
  auto vocab = size_t(r.run().model.vocab);
  Values all((text.size() - size_t(first) + 1) * vocab);
  auto row = [&](size_t i) { return std::span(all).subspan(i * vocab, vocab); };
  r.decoder().prefill(0, text.first(size_t(first)), row(0));
  for (auto i = int32_t(first); i < int32_t(text.size()); i++)
    r.decoder().decode({&text[size_t(i)], 1}, {&i, 1}, row(size_t(i) + 1 - size_t(first)));
  return all;
}

// f32: the order of sums differs. bf16: activations are rounded at other places, so neither is the other;
// both are held against f32 on the same weights, and the cached one may be 1.25 times as far off, no more.
TEST_P(Cached, PrefillAndDecodeGiveTheLogitsOfTheWholeText) {
  auto [arch, compute] = GetParam();
  RunSpec run = run_of(arch, compute), f32 = run_of(arch, "f32");
  int64_t n = run.data.seq_len;
  auto vocab = size_t(run.model.vocab);
  GenerationShape shape{.slots = 2, .capacity = n, .prefills = {1, 8, n - 1, n}};
  Runner whole(run, book_inference(run, 1)), exact(f32, book_inference(f32, 1)),
      cached(run, book_generation(run, 1, shape));
  Values weights;
  for (const Param& p : exact->params().params) {
    weights.resize(size_t(p.numel()));
    whole->memory().read_param(p, "", weights);
    exact->memory().write_param(p, "", weights);
  }
  cached->decoder().open_cache(2, n);
  std::vector<int32_t> text = random_text(run, n, 1);
  Values all, oracle;
  whole->evaluator().logits(text, all);
  exact->evaluator().logits(text, oracle);
  for (int64_t first : shape.prefills) {
    Values got = cached_logits(*cached.runner, text, first);
    auto tail = [&](const Values& v) { return std::span(v).last(size_t(n - first + 1) * vocab); };
    double most = worst(got, tail(all)), off = distance(got, tail(oracle)),
           whole_off = distance(tail(all), tail(oracle)), length = distance(tail(oracle), Values(got.size()));
    fmt::print(
        "{} {}: {:2} of {} tokens read: logits within {:.1e} of the typical one; off f32 by {:.1e}, whole by "
        "{:.1e}\n",
        arch, compute, first, n, most, off / length, whole_off / length);
    if (run.precision.compute != "f32") {
      EXPECT_LE(off, 1.25 * whole_off);
      continue;
    }
    EXPECT_LE(most, 1e-5);
    EXPECT_GT(most, 0);  // another order of sums: were it zero, a thing would have been compared with itself
  }
}

// Texts of unequal length, decoded together, after one has moved to another slot; bit by bit.
TEST_P(Cached, TextsThatShareAPassAreAsTheyWereAlone) {
  auto [arch, compute] = GetParam();
  RunSpec run = run_of(arch, compute);
  auto vocab = size_t(run.model.vocab);
  const std::vector<int64_t> lengths = {3, 11, 1, 7};
  GenerationShape shape{.slots = 4, .capacity = 20, .prefills = lengths};
  Runner r(run, book_generation(run, 1, shape)), two(run, book_generation(run, 2, shape), 2);
  r->decoder().open_cache(4, 20), two->decoder().open_cache(4, 20);
  Values logits(4 * vocab), again(4 * vocab);
  std::vector<Values> alone;
  for (size_t t = 0; t < 4; t++) {
    std::vector<int32_t> text = random_text(run, 20, t);
    r->decoder().prefill(0, std::span(text).first(size_t(lengths[t])), std::span(logits).first(vocab));
    for (int32_t i = int32_t(lengths[t]); i < lengths[t] + 5; i++) {
      r->decoder().decode({&text[size_t(i)], 1}, {&i, 1}, std::span(logits).first(vocab));
      alone.emplace_back(logits.begin(), logits.begin() + int64_t(vocab));
    }
  }
  std::vector<int32_t> order = {0, 3, 2,
                                1};  // text 3 is read into slot 3 and moves to 1, and the other way round
  for (Runner* x : {&r, &two})
    for (size_t t : {0u, 1u, 2u, 3u}) {
      std::vector<int32_t> text = random_text(run, 20, t);
      (*x)->decoder().prefill(int64_t(t), std::span(text).first(size_t(lengths[t])),
                              std::span(logits).first(vocab));
    }
  for (Runner* x : {&r, &two}) {
    (*x)->decoder().move_text(3, 1, lengths[3]);
    std::vector<int32_t> text = random_text(run, 20, 1);
    (*x)->decoder().prefill(3, std::span(text).first(size_t(lengths[1])), std::span(logits).first(vocab));
  }
  for (int32_t step = 0; step < 5; step++) {
    std::vector<int32_t> tokens, positions;
    for (int32_t t : order) {
      positions.push_back(int32_t(lengths[size_t(t)]) + step);
      tokens.push_back(random_text(run, 20, uint64_t(t))[size_t(positions.back())]);
    }
    r->decoder().decode(tokens, positions, logits);
    two->decoder().decode(tokens, positions, again);
    EXPECT_EQ(logits, again) << "threads, step " << step;
    for (size_t i = 0; i < 4; i++) {
      Values row(logits.begin() + int64_t(i * vocab), logits.begin() + int64_t((i + 1) * vocab));
      EXPECT_EQ(row, alone[size_t(order[i]) * 5 + size_t(step)]) << "text " << order[i] << " step " << step;
    }
  }
}

TEST_P(Cached, MetaEqualsTheRun) {
  auto [arch, compute] = GetParam();
  RunSpec run = run_of(arch, compute);
  GenerationShape shape{.slots = 3, .capacity = 19, .prefills = {5, 17}};
  int64_t booked = book_generation(run, 1, shape);
  Runner r(run, booked);
  r->decoder().open_cache(3, 19);
  EXPECT_EQ(r->decoder().cache().sizes().bytes(), 2 * run.model.layers * 3 * 19 * run.model.kv_size() *
                                                      size_of(dtype_from_name(run.precision.compute)));
  Values logits(3 * size_t(run.model.vocab));
  for (int64_t n : shape.prefills)
    r->decoder().prefill(2, random_text(run, n, 1), std::span(logits).first(size_t(run.model.vocab)));
  for (size_t n : {1u, 2u, 3u}) {
    std::vector<int32_t> each(n, 4);
    r->decoder().decode(each, each, std::span(logits).first(n * size_t(run.model.vocab)));
  }
  EXPECT_EQ(r->arena().high_water(), booked);
  // A smaller cache afterwards, in the same arena.
  r->decoder().open_cache(1, 7);
  r->decoder().prefill(0, random_text(run, 5, 2), std::span(logits).first(size_t(run.model.vocab)));
  EXPECT_EQ(r->arena().high_water(), booked);
}

TEST(Cache, RefusesWhatItCannotHold) {
  RunSpec run = run_of("llama", "f32");
  Runner r(run, book_generation(run, 1, {.slots = 1, .capacity = 6, .prefills = {6}}));
  Values logits(size_t(run.model.vocab));
  EXPECT_THROW(r->decoder().prefill(0, random_text(run, 3, 1), logits), Error);  // no cache yet
  EXPECT_THROW(r->decoder().open_cache(1, run.data.seq_len + 1), Error);
  r->decoder().open_cache(1, 6);
  EXPECT_THROW(r->decoder().prefill(0, random_text(run, 7, 1), logits), Error);
  EXPECT_THROW(r->decoder().prefill(1, random_text(run, 3, 1), logits), Error);
  r->decoder().prefill(0, random_text(run, 6, 1), logits);
  int32_t token = 3, position = 6;
  EXPECT_THROW(r->decoder().decode({&token, 1}, {&position, 1}, logits), Error);
}

INSTANTIATE_TEST_SUITE_P(Models, Cached,
                         testing::Values(Case{"gpt2", "f32"}, Case{"llama", "f32"}, Case{"gpt2", "bf16"},
                                         Case{"llama", "bf16"}, Case{"llama", "f16"}, Case{"qwen2", "f32"},
                                         Case{"qwen3", "f32"}, Case{"qwen3", "bf16"}),
                         [](const auto& i) { return std::string(i.param.arch) + "_" + i.param.compute; });

}  // namespace
}  // namespace trireme
