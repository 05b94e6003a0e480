// Queues of the CPU: order within one, none between two but what events say, errors, full queues.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "device/device.h"

namespace trireme {
namespace {

// A task from a function; `calls` outlive the stream's work.
struct Calls {
  std::vector<std::function<void()>> functions;
  HostTask task(std::function<void()> f) {
    functions.push_back(std::move(f));
    return {[](void* self, int64_t i) { static_cast<Calls*>(self)->functions[size_t(i)](); }, this,
            int64_t(functions.size()) - 1};
  }
  Calls() { functions.reserve(10000); }
};

class Streams : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Device> device = make_device("cpu", {.threads = 1, .spin = GetParam()});
};
INSTANTIATE_TEST_SUITE_P(Spin, Streams, ::testing::Bool());

TEST_P(Streams, HaveNamesAndIds) {
  EXPECT_EQ(device->stream("compute").id, 0);
  EXPECT_EQ(device->stream("tp").id, 1);
  EXPECT_EQ(device->stream("dp").id, 2);
  EXPECT_EQ(device->stream("tp").id, 1);
  auto meta = make_device("meta");
  EXPECT_EQ(meta->stream("compute").id, 0);
  EXPECT_EQ(meta->stream("tp").id, 1);
  EXPECT_EQ(meta->stream("dp").id, 2);
  EXPECT_EQ(meta->stream("tp").id, 1);
}

TEST_P(Streams, KeepTheirOrder) {
  Calls calls;
  std::vector<int> seen;
  Stream s = device->stream("dp");
  for (int i = 0; i < 1000; i++)  // more than stand in the queue
    device->enqueue(s, calls.task([&seen, i] { seen.push_back(i); }));
  device->sync(s);
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; i++) EXPECT_EQ(seen[size_t(i)], i);
}

TEST_P(Streams, RunBesideComputeUntilItWaits) {
  Calls calls;
  std::promise<void> go;
  std::thread::id worker;
  int done = 0;
  Stream s = device->stream("dp"), compute = device->stream("compute");
  device->enqueue(s,
                  calls.task([&] { go.get_future().wait(), worker = std::this_thread::get_id(), done = 1; }));
  Event first = device->record(s);
  device->enqueue(compute, calls.task([&] { go.set_value(); }));  // inline: the worker cannot have passed
  device->wait(compute, first);
  EXPECT_EQ(done, 1);
  EXPECT_NE(worker, std::this_thread::get_id());
  device->wait(compute, device->record(compute));
  device->wait(s, device->record(compute));
}

TEST_P(Streams, WaitForOneAnotherByEvents) {
  Calls calls;
  std::promise<void> go;
  int made = 0, seen = -1;
  Stream a = device->stream("a"), b = device->stream("b");
  device->enqueue(a, calls.task([&] { go.get_future().wait(), made = 7; }));
  device->wait(b, device->record(a));
  device->enqueue(b, calls.task([&] { seen = made; }));
  device->enqueue(a, calls.task([&] {}));  // after the event
  go.set_value();
  device->sync(b);
  EXPECT_EQ(seen, 7);
  device->sync(a);  // its last task may still be to come, and calls go before the device does
}

TEST_P(Streams, StartNoTeams) {
  Calls calls;
  std::atomic<int> threads = 0;
  Stream s = device->stream("dp");
  device->enqueue(s, calls.task([&] {
#pragma omp parallel
    threads++;
  }));
  device->sync(s);
  EXPECT_EQ(threads, 1);
}

TEST_P(Streams, CopyInTheirTurn) {
  Calls calls;
  std::vector<float> from(35), to(35);
  Tensor src(from.data(), {5, 7}, DType::f32), dst(to.data(), {5, 7}, DType::f32);
  Stream s = device->stream("copies");
  device->enqueue(s, calls.task([&] {
    for (size_t i = 0; i < from.size(); i++) from[i] = float(i);
  }));
  device->copy(dst, src, s);
  device->sync(s);
  EXPECT_EQ(from, to);
  EXPECT_EQ(to[34], 34);
}

TEST_P(Streams, KeepTheirErrorForTheRank) {
  Calls calls;
  std::atomic<int> ran = 0;
  Stream a = device->stream("a"), b = device->stream("b"), c = device->stream("c");
  device->enqueue(a, calls.task([] { run_failed("the cable is cut"); }));
  Event failed = device->record(a);
  auto error_of = [](auto&& f) -> std::string {
    try {
      f();
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_EQ(error_of([&] { device->wait({}, failed); }), "the cable is cut");
  EXPECT_EQ(error_of([&] { device->sync(a); }), "the cable is cut");
  EXPECT_EQ(error_of([&] { device->enqueue(a, calls.task([&] { ran++; })); }), "the cable is cut");
  EXPECT_EQ(error_of([&] { device->copy(Tensor(), Tensor(), a); }), "the cable is cut");
  device->wait(b, failed);  // who waits for it has not what it waits for
  EXPECT_EQ(error_of([&] { device->sync(b); }), "the cable is cut");
  device->enqueue(c, calls.task([&] { ran++; }));
  device->sync(c);
  EXPECT_EQ(ran, 1);
}

TEST_P(Streams, AreEmptyWhenTheDeviceGoes) {
  Calls calls;
  std::atomic<int> ran = 0;
  Stream a = device->stream("a"), b = device->stream("b");
  for (int i = 0; i < 100; i++) {
    device->enqueue(a, calls.task([&] { ran++; }));
    device->wait(b, device->record(a));
    device->enqueue(b, calls.task([&] { ran++; }));
    device->wait(a, device->record(b));
  }
  device.reset();
  EXPECT_EQ(ran, 200);
}

TEST(MetaStreams, RunNothing) {
  auto meta = make_device("meta");
  Stream s = meta->stream("dp");
  meta->enqueue(s, {[](void*, int64_t) { FAIL(); }, nullptr, 0});
  meta->wait({}, meta->record(s));
  meta->sync(s);
}

TEST(CpuDevice, RunsKernelsOnComputeOnly) {
  auto device = make_device("cpu", {.threads = 1});
  std::vector<float> x(4, 1.f);
  EXPECT_THROW(device->kernels().run(ZeroArgs{Tensor(x.data(), {4}, DType::f32)}, device->stream("dp")),
               Error);
}

}  // namespace
}  // namespace trireme
