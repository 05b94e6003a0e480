// An independent witness of the ledger: malloc, interposed. After warm-up a step takes nothing from the
// system, and what lives outside the arenas is small and does not grow.
#include <dlfcn.h>
#include <dnnl.h>
#include <gtest/gtest.h>
#include <link.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <thread>

#include "comm/watch/watchdog.h"
#include "comm/wrap/watched.h"
#include "data/prefetch.h"
#include "data/shard_writer.h"
#include "runtime/rank_threads.h"
#include "spec/run_schedule.h"
#include "tiny.h"

extern "C" {
void* __libc_malloc(size_t);
void __libc_free(void*);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

struct Counts {
  std::atomic<int64_t> calls{0}, bytes{0}, largest{0};
  void add(size_t n) {
    calls++, bytes += int64_t(n);
    if (int64_t(n) > largest) largest = int64_t(n);
  }
  void clear() { calls = 0, bytes = 0, largest = 0; }
};
std::atomic<bool> g_counting{false};
Counts g_ours, g_library;
std::atomic<int64_t> g_live{0};  // bytes asked of malloc and not given back, since the program began
std::atomic<int> g_in_library{0};
// A rank's thread knows by itself whether it is in the library; other threads are the library's where any is
// in it, for its own allocate too, where its kernels pack.
thread_local int t_in_library = 0;
thread_local bool t_rank = false;

// clang's OpenMP runtime allocates in parallel regions, some hundreds of bytes each time; g++'s does not.
struct Code {
  uintptr_t begin = 0, end = 0;
};
Code clangs_openmp() {
  Code found;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* to) {
        if (!std::strstr(object->dlpi_name, "libomp.so")) return 0;
        for (int i = 0; i < object->dlpi_phnum; i++)
          if (const auto& part = object->dlpi_phdr[i]; part.p_type == PT_LOAD && part.p_flags & PF_X)
            *static_cast<Code*>(to) = {object->dlpi_addr + part.p_vaddr,
                                       object->dlpi_addr + part.p_vaddr + part.p_memsz};
        return 1;
      },
      &found);
  return found;
}
Code g_clangs_openmp;

void* count(void* p, size_t n, void* caller) {
  if (!p) return p;
  g_live += int64_t(malloc_usable_size(p));
  const auto at = reinterpret_cast<uintptr_t>(caller);
  const bool library = (t_rank ? t_in_library > 0 : g_in_library > 0) ||
                       (at >= g_clangs_openmp.begin && at < g_clangs_openmp.end);
  if (g_counting) (library ? g_library : g_ours).add(n);
  return p;
}
void forget(void* p) {
  if (p) g_live -= int64_t(malloc_usable_size(p));
}

}  // namespace

extern "C" {
void* malloc(size_t n) {
  return count(__libc_malloc(n), n, __builtin_return_address(0));
}
void* calloc(size_t k, size_t n) {
  return count(__libc_calloc(k, n), k * n, __builtin_return_address(0));
}
void* realloc(void* p, size_t n) {
  forget(p);
  return count(__libc_realloc(p, n), n, __builtin_return_address(0));
}
void* memalign(size_t a, size_t n) {
  return count(__libc_memalign(a, n), n, __builtin_return_address(0));
}
void* aligned_alloc(size_t a, size_t n) {
  return memalign(a, n);
}
int posix_memalign(void** out, size_t a, size_t n) {
  *out = memalign(a, n);
  return *out ? 0 : 12;
}
void free(void* p) {
  forget(p);
  __libc_free(p);
}

// oneDNN builds a small argument map for each execution; its allocations are counted apart from ours.
dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t prim, dnnl_stream_t stream, int n,
                                     const dnnl_exec_arg_t* args) {
  using Fn = dnnl_status_t (*)(const_dnnl_primitive_t, dnnl_stream_t, int, const dnnl_exec_arg_t*);
  static Fn real = reinterpret_cast<Fn>(dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  g_in_library++, t_in_library++;
  dnnl_status_t status = real(prim, stream, n, args);
  g_in_library--, t_in_library--;
  return status;
}
}

namespace trireme {
namespace {

int64_t resident_bytes() {
  std::ifstream f("/proc/self/statm");
  int64_t size = 0, resident = 0;
  f >> size >> resident;
  return resident * 4096;
}

void check_steady(const RunSpec& run, int threads, bool traced = false) {
  test::Rig rig(run, "1f1b", threads);
  SpanRecorder spans(size_t(5 * (rig.booking.launches + 4 * run.microbatches() + 8)));
  FillBatch fill = test::random_batches(run);
  auto step = [&](int64_t s) {
    return rig.runner->step(rig.schedule.ranks[0], s, run.tokens_per_step(), fill);
  };
  g_clangs_openmp = clangs_openmp();
  for (int64_t s = 1; s <= 3; s++) step(s);
  int64_t live = g_live, resident = resident_bytes();
  if (traced) rig.runner->trace(&spans);
  live = g_live;
  g_ours.clear(), g_library.clear();
  g_counting = true;
  for (int64_t s = 4; s <= 8; s++) step(s);
  g_counting = false;
  EXPECT_EQ(spans.spans().empty(), !traced);
  EXPECT_EQ(spans.dropped(), 0);
  fmt::print(
      "{} {} threads {}: in 5 steps malloc was called {} times by us and the thread runtime, {} times inside "
      "oneDNN and clang's OpenMP (largest {} bytes, all given back); live bytes moved by {}\n",
      run.model.arch, run.precision.compute, threads, g_ours.calls.load(), g_library.calls.load(),
      g_library.largest.load(), g_live.load() - live);
  EXPECT_EQ(g_ours.calls, 0) << "largest " << g_ours.largest;
  EXPECT_EQ(g_live, live);
  // Where the processor has no bf16 products, and without AVX-512 in f32, oneDNN packs what it multiplies
  // into blocks that it takes and gives back for each.
  const bool packs = run.precision.compute == "bf16" ? !make_device("cpu")->native(DType::bf16)
                                                     : !__builtin_cpu_supports("avx512f");
  EXPECT_LT(g_library.largest, packs ? 1 << 16 : 4096);
  EXPECT_LT(resident_bytes() - resident, 1 << 20);
}

TEST(Malloc, AStepAllocatesNothingAfterWarmUp) {
  for (const char* arch : {"gpt2", "llama", "qwen2", "qwen3"})
    for (const char* compute : {"f32", "bf16", "f16"})
      for (int threads : {1, 2}) check_steady(test::tiny_run(arch, compute, 2), threads);
}

// Muon's Newton-Schulz iterations take their matrices from the arena.
TEST(Malloc, NorDoesOneWithMuon) {
  for (const char* compute : {"f32", "bf16"}) {
    RunSpec run = test::tiny_run("llama", compute, 2);
    run.optimizer.name = "muon";
    for (int threads : {1, 2}) check_steady(run, threads);
  }
}

// Nor one that computes activations again, or has inputs and optimizer state wait in files.
TEST(Malloc, NorDoesOneThatComputesAgain) {
  for (const char* arch : {"gpt2", "qwen3"})
    for (const char* recompute : {"selective", "full", "offload"}) {
      RunSpec run = test::tiny_run(arch, "bf16", 2);
      run.layout.recompute = recompute == std::string("offload") ? "full" : recompute;
      run.layout.recompute_tensors = Texts::of({"n1", "qkv", "o", "mid", "n2", "u", "a"});
      if (recompute == std::string("offload"))
        run.layout.offload_mb = 0.05,  // pieces of a block of elements
            run.layout.offload = "all", run.layout.offload_dir = fs::temp_directory_path().string();
      check_steady(run, 1);
    }
}

// Steps of a layout on rank threads, under a watchdog that beats a thousand times as often as in a run.
void check_ranks(const RunSpec& run, const std::string& what) {
  const int ranks = int(run.world());
  const Schedule schedule = schedule_of(run);
  const int64_t arena = book_training(run, schedule, 1).arena_bytes;
  std::deque<Pulse> pulses;
  std::vector<const Pulse*> watched;
  for (int i = 0; i < ranks; i++) watched.push_back(&pulses.emplace_back(i));
  Watchdog dog(watched, make_thread_board(ranks), {.beat_s = 0.001, .dead_s = 1e3, .slow_s = 1e3}, {});
  run_rank_threads(ranks, "cpu", {.threads = 1}, [&](Device& device, CommFactory& inner) {
    t_rank = true;
    Pulse& pulse = pulses[size_t(inner.rank())];
    std::unique_ptr<CommFactory> told = make_watched(inner, &device, pulse);
    CommFactory& factory = *told;
    CommSet comms(factory, mesh_of(run.layout));
    StageRunner r(run, RunMode::train, device, arena, &comms);
    r.watch().pulse = &pulse;
    r.init_weights();
    const FillBatch fill = test::random_batches(run);
    const std::vector<Action>& actions = schedule.ranks[size_t(r.sharing().pp.rank)];
    auto steps = [&](int64_t first, int64_t last) {
      for (int64_t s = first; s <= last; s++) r.step(actions, s, run.tokens_per_step(), fill);
      agree_max(factory.control(), 0);
    };
    steps(1, 3);
    if (factory.rank() == 0) g_ours.clear(), g_counting = true;
    agree_max(factory.control(), 0);
    steps(4, 8);
    if (factory.rank() == 0) g_counting = false;
    agree_max(factory.control(), 0);
    EXPECT_EQ(pulse.beat(1).step, 8);
  });
  EXPECT_EQ(g_ours.calls, 0) << what << ", largest " << g_ours.largest;
}

// Nor does one of several ranks: gathers, reductions and agreements use again what they have, and so does the
// watchdog.
TEST(Malloc, NorDoesAStepOfManyRanks) {
  for (int64_t zero = 0; zero <= 3; zero++)
    for (const auto& [compute, optimizer] :
         {std::pair("f32", "adamw"), {"bf16", "adamw"}, {"f32", "muon"}, {"bf16", "muon"}}) {
      RunSpec run = test::tiny_run("gpt2", compute, 6);
      run.model.tied = true;
      run.optimizer.name = optimizer;
      run.layout.dp = 3, run.layout.zero = zero;
      run.precision.reduce = compute;
      check_ranks(run, fmt::format("zero {} {} {}", zero, compute, optimizer));
    }
}

// Nor one of a pipeline.
TEST(Malloc, NorDoesAStepOfStages) {
  for (const char* schedule : {"1f1b", "gpipe"})
    for (int64_t zero : {0, 3}) {
      RunSpec run = test::tiny_run("gpt2", "f32", 8);
      run.model.tied = true;
      run.layout.pp = 2, run.layout.dp = 2, run.layout.zero = zero, run.layout.schedule = schedule;
      run.precision.reduce = "f32";
      check_ranks(run, fmt::format("zero {} {}", zero, schedule));
    }
}

// What a rank takes is its own, whatever the others are in.
TEST(Malloc, ARankIsNotInTheLibraryWhileAnotherIs) {
  for (const bool rank : {true, false}) {
    g_ours.clear(), g_library.clear();
    g_in_library++, g_counting = true;  // another thread is in it
    std::thread([rank] {
      t_rank = rank;
      void* volatile p = malloc(77777);
      free(p);
    }).join();
    g_counting = false, g_in_library--;
    EXPECT_EQ(g_ours.largest == 77777, rank);
    EXPECT_EQ(g_library.largest == 77777, !rank);
  }
}

TEST(Malloc, DecodingAllocatesNothingAfterWarmUp) {
  for (const char* compute : {"f32", "bf16"})
    for (int threads : {1, 2}) {
      RunSpec run = test::tiny_run("llama", compute, 1);
      auto device = make_device("cpu", {.threads = threads});
      StageRunner runner(run, RunMode::infer, *device,
                         book_generation(run, threads, {.slots = 3, .capacity = 20, .prefills = {4}}));
      runner.init_weights();
      runner.decoder().open_cache(3, 20);
      std::vector<float> logits(size_t(3 * run.model.vocab));
      std::vector<int32_t> tokens = {1, 2, 3, 4}, positions;
      for (int64_t slot = 0; slot < 3; slot++)
        runner.decoder().prefill(slot, tokens, std::span(logits).first(size_t(run.model.vocab)));
      tokens.resize(3);
      auto decode = [&](int32_t position) {
        positions.assign(3, position);
        runner.decoder().decode(tokens, positions, logits);
      };
      for (int32_t p = 4; p < 7; p++) decode(p);
      int64_t live = g_live;
      g_ours.clear(), g_library.clear();
      g_counting = true;
      for (int32_t p = 7; p < 20; p++) decode(p);
      g_counting = false;
      EXPECT_EQ(g_ours.calls, 0) << compute << ", largest " << g_ours.largest;
      EXPECT_EQ(g_live, live);
    }
}

// Nor does the thread that reads ahead, of a mixture, over the epochs of its sources and the mixture's kept
// states.
TEST(Malloc, ReadingAheadAllocatesNothing) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("trireme_malloc_{}", ::getpid());
  make_folders(folder);
  std::vector<TokenShard> shards;
  for (const char* name : {"a", "b", "c"}) {
    ShardWriter w(folder / name, 100);
    w.add_document(std::vector<int32_t>(300, 7));
    w.commit();
    shards.push_back(TokenShard::open(folder / name));
  }
  const double weights[] = {5, 2, 0.3};
  DataLoader loader(std::move(shards), weights,
                    {.vocab = 100, .seq_len = 16, .batch = {.global = 64, .micro = 8}});
  std::vector<int32_t> tokens(128), targets(128), positions(128);
  {
    Prefetcher ahead(loader, {.depth = 4, .first_step = 1, .last_step = 300});
    int64_t live = 0;
    for (int64_t step = 1; step <= 300; step++) {
      if (step == 3) live = g_live, g_ours.clear(), g_counting = true;
      for (int64_t mb = 0; mb < 8; mb++) ahead.get(step, mb, tokens, targets, positions);
    }
    g_counting = false;
    EXPECT_EQ(g_ours.calls, 0) << "largest " << g_ours.largest;
    EXPECT_EQ(g_live, live);
  }
  fs::remove_all(folder);
}

TEST(Malloc, NorDoesOneWithDropout) {
  RunSpec run = test::tiny_run("gpt2", "bf16", 2);
  run.model.embd_pdrop = run.model.attn_pdrop = run.model.resid_pdrop = 0.1;
  for (int threads : {1, 2}) check_steady(run, threads);
}

TEST(Malloc, ATracedStepAllocatesNothingEither) {
  check_steady(test::tiny_run("llama", "f32", 2), 2, true);
}

// Bytes outside the arenas stay below 16 MiB (DESIGN.md section 4), at a size where the arena is far larger.
TEST(Malloc, LittleLivesOutsideTheArenas) {
  RunSpec run = test::tiny_run("llama", "bf16", 2);
  run.model = ModelSpec::of("llama");
  run.model.hidden = 256, run.model.heads = 4, run.model.layers = 4, run.model.vocab = 2048;
  run.data.seq_len = 128, run.batch.micro = 4, run.batch.global = 8;
  run.model.finish(run.data.seq_len);
  int64_t before = g_live;
  test::Rig rig(run, "1f1b", 2);
  for (int64_t s = 1; s <= 2; s++) rig.step(s);
  int64_t outside = g_live - before;
  fmt::print("arena {} bytes, outside it {} bytes\n", rig.booking.arena_bytes, outside);
  EXPECT_GT(rig.booking.arena_bytes, 64 << 20);
  EXPECT_LT(outside, 16 << 20);
}

}  // namespace
}  // namespace trireme
