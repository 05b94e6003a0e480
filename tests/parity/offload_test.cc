// State and inputs that wait in a file or in the host's memory: the same run to the bit, in less memory,
// whose bytes are those booked; and the file itself (docs/recompute.md).
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <numeric>

#include "base/rng.h"
#include "checks.h"
#include "cost/memory.h"
#include "device/device_memory.h"
#include "far_device.h"
#include "runtime/state_offload.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme::parity {
namespace {

constexpr int64_t kBlockOfState = 4096;  // elements of a piece, at run_of()'s offload_mb

int64_t kinds_of(const RunSpec& run) {
  return run.precision.compute == "f32" ? 2 : 3;
}

class StateOffloaded : public testing::TestWithParam<const char*> {};

TEST_P(StateOffloaded, EqualsWhatStayedToTheBit) {
  Case c = from_text(GetParam());
  SCOPED_TRACE(GetParam());
  const RunSpec run = run_of(c);
  ASSERT_TRUE(problems_of(run).empty() && unsupported_of(run).empty());
  const Ran away = train_layout(run, {});
  expect_learned(away);
  const Mesh mesh = mesh_of(run.layout);
  for (size_t r = 0; r < away.ranks.size(); r++) {
    const RankFacts& rank = away.ranks[r];
    const Booking b = book_stage(run, schedule_of(run), 1, {}, mesh.coord(int(r), Axis::pp));
    EXPECT_EQ(rank.peaks, b.peak) << r;
    EXPECT_EQ(rank.high_water <= b.arena_bytes, true) << r;
    EXPECT_EQ(rank.state[size_t(Bucket::optimizer)], 0) << r;
    EXPECT_GT(rank.peaks[size_t(Bucket::optimizer)], 0) << r;
    EXPECT_LE(rank.peaks[size_t(Bucket::optimizer)],
              int64_t(StateOffload::kBuffers) * kinds_of(run) * kBlockOfState * 4)
        << r;
    EXPECT_EQ(rank.left_over, 0) << r;
  }
  c.state = false;
  const Ran stayed = train_layout(run_of(c), {});
  expect_identical(away, stayed);
  for (size_t r = 0; r < away.ranks.size(); r++)
    for (Bucket k : {Bucket::weights, Bucket::grads, Bucket::activations, Bucket::comm})
      EXPECT_EQ(away.ranks[r].peaks[size_t(k)], stayed.ranks[r].peaks[size_t(k)]) << r;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, StateOffloaded,
    testing::Values("state=1 layers=3", "state=1 arch=gpt2 compute=bf16 grads=bf16 microbatches=2",
                    "state=1 compute=f16 tied=1", "state=1 dp=3 zero=1 microbatches=2",
                    "state=1 dp=2 zero=2 compute=bf16 microbatches=2",
                    "state=1 dp=4 zero=3 micro=1 hidden=72", "state=1 dp=2 compute=bf16 zero=0",
                    "state=1 dp=4 zero=3 group=2 micro=1 compute=bf16",
                    "state=1 tp=3 heads=3 kv_heads=3 compute=bf16",
                    "state=1 dp=2 ep=2 arch=qwen3_moe experts=4 zero=2 microbatches=2 aux=0.01",
                    "state=1 pp=2 layers=4 microbatches=4 compute=bf16", "state=1 cp=3 seq=24",
                    "state=1 offload=1 recompute=full dp=2 zero=3 layers=3 compute=bf16"));

// ---- devices whose memory is not the host's ----

class OffloadedFar : public testing::TestWithParam<const char*> {};

// A device whose memory faults under the processor's hands trains what a CPU trains that offloads nothing.
TEST_P(OffloadedFar, EqualsWhatStayedToTheBit) {
  for (const char* to : {"host", "file"}) {
    Case c = from_text(GetParam());
    c.to = to;
    SCOPED_TRACE(to_text(c));
    const RunSpec run = run_of(c);
    RunSpec gpu = run;
    gpu.train.device = "cuda", gpu.precision.fp8 = "none";
    for (const auto& all : {problems_of(gpu), unsupported_of(gpu)})
      for (const Problem& p : all) ADD_FAILURE() << p.keys.front() << ": " << p.text;
    const Ran away = train_layout(run, {.far = true});
    expect_learned(away);
    const Mesh mesh = mesh_of(run.layout);
    for (size_t r = 0; r < away.ranks.size(); r++) {
      const RankFacts& rank = away.ranks[r];
      const Booking b = book_stage(run, schedule_of(run), 1, {}, mesh.coord(int(r), Axis::pp));
      EXPECT_EQ(rank.peaks, b.peak) << r;
      EXPECT_EQ(rank.peak_total, b.peak_total) << r;
      EXPECT_LE(rank.high_water, b.arena_bytes) << r;
      EXPECT_EQ(rank.waiting, b.waiting_bytes) << r;
      EXPECT_EQ(rank.waiting > 0, c.to == "host") << r;
      EXPECT_EQ(rank.left_over, 0) << r;
    }
    c.offload = c.state = false;
    expect_identical(away, train_layout(run_of(c), {}));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, OffloadedFar,
    testing::Values("state=1 layers=3", "state=1 arch=gpt2 compute=bf16 grads=bf16 microbatches=2",
                    "state=1 compute=f16 tied=1", "state=1 dp=3 zero=1 microbatches=2",
                    "state=1 dp=2 zero=2 compute=bf16 microbatches=2",
                    "state=1 dp=4 zero=3 group=2 micro=1 compute=bf16 hidden=72",
                    "state=1 tp=3 heads=3 kv_heads=3 compute=bf16",
                    "state=1 dp=2 ep=2 arch=qwen3_moe experts=4 zero=2 microbatches=2 aux=0.01",
                    "state=1 pp=2 layers=4 microbatches=4 compute=bf16", "state=1 cp=3 seq=24",
                    "state=1 offload=1 recompute=full dp=2 zero=3 layers=3 compute=bf16",
                    "offload=1 recompute=full layers=4",
                    "offload=1 recompute=full blocks=2 layers=3 compute=bf16",
                    "offload=1 recompute=full tp=2 heads=4 hidden=32 shard=1",
                    "offload=1 recompute=full pp=2 stages=2 layers=6 microbatches=4 schedule=zb-v"));

// The closed forms: of state 8 or 12 bytes an element of the rank's part; of one rank's microbatch, which
// is the only one in flight, each block's input.
TEST(OffloadedToTheHost, BytesAreThoseOfTheClosedForms) {
  for (const auto& [compute, dp, zero] : {std::tuple("f32", 1, 0), {"bf16", 1, 0}, {"bf16", 3, 1}}) {
    Case c = from_text(fmt::format("compute={} dp={} zero={} layers=3 recompute=full microbatches=2 to=host",
                                   compute, dp, zero));
    const int64_t element = c.compute == "f32" ? 4 : 2;
    const auto booked = [&] {
      const RunSpec run = run_of(c);
      return book_training(run, schedule_of(run), 1).waiting_bytes;
    };
    EXPECT_EQ(booked(), 0);
    c.state = true;
    const int64_t state =
        flat_elements(run_of(c).model, {.zero = zero, .shards = dp}) / dp * (element == 4 ? 8 : 12);
    EXPECT_EQ(booked(), state) << compute << dp;
    c.offload = true;
    EXPECT_EQ(booked(), state + 3 * 2 * 23 * 36 * element) << compute << dp;
  }
}

// Of the microbatches that a rank holds at once, not of all: 1f1b's first of two stages has two of five.
TEST(OffloadedToTheHost, PlacesAreTakenAgain) {
  for (const auto& [schedule, held] : {std::pair("1f1b", 2), {"gpipe", 5}}) {
    const RunSpec run = run_of(from_text(
        fmt::format("to=host offload=1 recompute=full pp=2 layers=6 microbatches=5 schedule={}", schedule)));
    const int64_t input = 2 * 23 * 36 * 4;
    EXPECT_EQ(book_stage(run, schedule_of(run), 1, {}, 0).waiting_bytes, held * 3 * input) << schedule;
  }
}

// Odd bytes, larger than what goes by way of the host at once; nobody but the device touches its memory.
TEST(OffloadStore, FarBytesComeBack) {
  constexpr int64_t kBytes = (5 << 19) + 13, kAt = 77;
  auto device = test::make_far_device({.threads = 1});
  std::byte* far = device->reserve(2 * kBytes);
  EXPECT_NE(device_copy_of(far), nullptr);
  const Tensor out(far, {kBytes}, DType::u8), back(far + kBytes, {kBytes}, DType::u8);
  std::vector<uint8_t> want(kBytes), got(kBytes);
  for (int64_t i = 0; i < kBytes; i++) want[size_t(i)] = uint8_t(below(7, uint64_t(i), 256));
  for (const bool host : {true, false}) {
    OffloadStore store({fs::temp_directory_path(), host}, *device, 1, kAt + kBytes);
    EXPECT_EQ(store.host_bytes(), host ? kAt + kBytes : 0);
    device->upload(out, want.data());
    device->wait({}, store.put(0, kAt, out));
    EXPECT_EQ(std::memcmp(store.map() + kAt, want.data(), kBytes), 0);
    device->upload(out, got.data());
    device->wait({}, store.get(0, kAt, back));
    device->download(got.data(), back);
    EXPECT_EQ(got, want);
    EXPECT_THROW(store.put(0, kAt + 1, out), Error);
    std::fill(got.begin(), got.end(), uint8_t(0));
  }
  device->release(far, 2 * kBytes);
}

// What the fake is for: an op on memory of the host is an error there.
TEST(FarDevice, RefusesMemoryOfTheHost) {
  auto device = test::make_far_device({.threads = 1});
  std::vector<float> here(5, 1);
  EXPECT_THROW(device->kernels().run(ZeroArgs{.y = Tensor(here.data(), {5}, DType::f32)}), std::exception);
  EXPECT_EQ(here[4], 1);
}

// Three pieces of a block each while a unit of several is updated; of buffers that hold a whole unit, what
// three neighbours have.
TEST(StateOffload, HoldsThreePieces) {
  for (const char* text : {"state=1 hidden=72 layers=2", "state=1 hidden=72 layers=3 compute=bf16"}) {
    SCOPED_TRACE(text);
    RunSpec run = run_of(from_text(text));
    const int64_t element = kinds_of(run) * 4;
    const auto optimizer = [&] {
      return book_training(run, schedule_of(run), 1).peak[size_t(Bucket::optimizer)];
    };
    EXPECT_EQ(optimizer(), 3 * kBlockOfState * element);
    run.layout.offload_mb = 100;
    const int64_t h = 72, kv = h / 3, ffn = h + 16;
    const int64_t block = 2 * h + h * (2 * h + 2 * kv) + 3 * h * ffn;
    const int64_t head = h + 61 * h;
    EXPECT_EQ(optimizer(), element * (run.model.layers == 2 ? 2 * block + head : 3 * block));
  }
}

// ---- what fails ends the run with the folder and the reason ----

std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  return "nothing failed";
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " not in: " << text;
}

// Files of this process that have no name any more.
std::vector<int> nameless_files() {
  std::vector<int> out;
  for (const fs::directory_entry& e : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string to = fs::read_symlink(e.path(), gone).string();
    if (to.find("/offload-") != std::string::npos) out.push_back(std::stoi(e.path().filename().string()));
  }
  return out;
}

TEST(StateOffload, AFileThatWasCutOffEndsTheRun) {
  const RunSpec run = run_of(from_text("state=1"));
  const Schedule schedule = schedule_of(run);
  auto device = make_device("cpu", {.threads = 1});
  StageRunner r(run, RunMode::train, *device, book_training(run, schedule, 1).arena_bytes);
  r.init_weights();
  const auto step = [&](int64_t s) {
    r.step(schedule.ranks[0], s, run.tokens_per_step(), [&](int64_t, int64_t, const HostBatch& b) {
      for (size_t i = 0; i < b.tokens.size(); i++)
        b.tokens[i] = int32_t(i % 61), b.targets[i] = int32_t(i * 7 % 61),
        b.positions[i] = int32_t(i % size_t(run.data.seq_len));
    });
  };
  step(1);
  const std::vector<int> files = nameless_files();
  ASSERT_EQ(files.size(), 1u);
  ASSERT_EQ(ftruncate(files[0], 8192), 0);
  const std::string why = failure([&] { step(2); });
  expect_in(why, run.layout.offload_dir + ": what was offloaded cannot be read: the file ends before it");
}

// A disk that is full, or a quota: said before the first step, with what is missing.
TEST(StateOffload, RoomIsTakenBeforeTheFirstStep) {
  const RunSpec run = run_of(from_text("state=1 compute=bf16"));
  auto device = make_device("cpu", {.threads = 1});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 65536;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const int64_t arena = book_training(run, schedule_of(run), 1).arena_bytes;
  const std::string why = failure([&] { StageRunner r(run, RunMode::train, *device, arena); });
  setrlimit(RLIMIT_FSIZE, &before), std::signal(SIGXFSZ, handler);
  expect_in(why, run.layout.offload_dir + ": no room for ");
  expect_in(why, " bytes to offload into: ");
}

TEST(OffloadStore, BytesComeBack) {
  auto device = make_device("cpu", {.threads = 1});
  OffloadStore file({fs::temp_directory_path()}, *device, 5, 5000);
  std::vector<int32_t> out(250), in(250);
  std::iota(out.begin(), out.end(), 7);
  const Tensor whole(out.data(), {250}, DType::i32), back(in.data(), {250}, DType::i32);
  device->wait({}, file.put(4, 4000, whole));
  device->wait({}, file.put(1, 1000, whole.narrow(0, 100, 37)));
  device->wait({}, file.get(4, 4000, back));
  EXPECT_EQ(in, out);
  device->wait({}, file.get(1, 1000, back.narrow(0, 0, 37)));
  EXPECT_EQ(in[36], out[136]);
  EXPECT_EQ(in[37], out[37]);
  EXPECT_THROW(file.put(0, 4000, Tensor(out.data(), {1001}, DType::u8)), Error);
}

// What one side writes the other reads.
TEST(OffloadStore, IsMemoryToo) {
  auto device = make_device("cpu", {.threads = 1});
  OffloadStore file({fs::temp_directory_path()}, *device, 1, 3000);
  auto* memory = reinterpret_cast<int32_t*>(file.map());
  EXPECT_EQ(memory[749], 0);
  std::vector<int32_t> x(750);
  std::iota(x.begin(), x.end(), 3);
  device->wait({}, file.put(0, 0, Tensor(x.data(), {750}, DType::i32)));
  EXPECT_TRUE(std::equal(x.begin(), x.end(), memory));
  memory[5] = -1;
  device->wait({}, file.get(0, 0, Tensor(x.data(), {750}, DType::i32)));
  EXPECT_EQ(x[5], -1);
}

TEST(OffloadStore, SaysWhyNot) {
  auto device = make_device("cpu", {.threads = 1});
  EXPECT_THROW(OffloadStore({"/proc/self/offload"}, *device, 1, 8), Error);
  OffloadStore file({fs::temp_directory_path()}, *device, 2, 16);
  double x = 0;
  // Never put there.
  expect_in(failure([&] { device->wait({}, file.get(1, 8, Tensor(&x, {1}, DType::f64))); }),
            "cannot be read");
}

TEST(OffloadStore, SaysThatTheDiskIsFull) {
  auto device = make_device("cpu", {.threads = 1});
  OffloadStore file({fs::temp_directory_path()}, *device, 1, 1 << 20);
  std::vector<uint8_t> x(1 << 17, 3);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 65536;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string why =
      failure([&] { device->wait({}, file.put(0, 0, Tensor(x.data(), {int64_t(x.size())}, DType::u8))); });
  setrlimit(RLIMIT_FSIZE, &before), std::signal(SIGXFSZ, handler);
  expect_in(why, ": offloading fails: ");
}

}  // namespace
}  // namespace trireme::parity
