// A libnccl.so for tests: NCCL's entry points over host memory that processes, or threads of one, share (a
// file of /dev/shm named by the unique id).
//
// It is as strict as NCCL's documentation: communicators are made by all their ranks, non-blocking ones are
// "in progress" for a few looks after each call, and a call meanwhile is an invalid usage; work of one
// communicator runs in the order of its calls, a send waits for its receive, and the first of a pair keeps
// its group's communicators in progress until the peer has called too; sums have an order of its own, which
// moves with the place in the buffer. Streams are FakeStreams; a thread a communicator does what was put
// there.
#include "fake_nccl.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/api.h"
#include "tensor/dtype.h"

#if !defined(FAKE_VERSION)
#define FAKE_VERSION 22809
#endif

using trireme::bf16;
using trireme::f16;
using namespace trireme::nccl;

namespace {

constexpr size_t kChunk = size_t(1) << 16;  // bytes of a rank that are added at a time
constexpr size_t kMail = size_t(1) << 14;   // bytes of a message at a time

struct Mailbox {
  std::atomic<int64_t> written, read;  // chunks
  std::atomic<int> came[2];            // has the sender called yet, the receiver?
  std::array<std::byte, kMail> data;
};
struct Region {  // zeros when it is new
  std::atomic<int> attached;
  std::atomic<int64_t> arrived;
  // then ranks x kChunk, then ranks x ranks Mailboxes
};
constexpr size_t kHead = 4096;
size_t bytes_of_region(int n) {
  return kHead + size_t(n) * kChunk + size_t(n) * size_t(n) * sizeof(Mailbox);
}

struct Stopped {};

std::atomic<int> later_looks = 30;
std::atomic<int> misused = 0, aborted = 0, by_init = 0, by_split = 0, live_registrations = 0;
std::mutex all_mutex;
std::set<ncclComm*> all;

}  // namespace

// Of one group: peers that are to call, before its communicators come out of it.
struct Connecting {
  std::vector<const std::atomic<int>*> peers;
  bool over = false;  // one of its communicators is gone
  bool done() const {
    return over || std::all_of(peers.begin(), peers.end(), [](auto* p) { return p->load() != 0; });
  }
};

struct Op {
  bool send = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  int peer = 0;
};

struct ncclComm {
  int rank = 0, size = 1;
  std::string name;
  bool blocking = false;
  Region* region = nullptr;
  size_t mapped = 0;
  int64_t meetings = 0;
  std::map<int, int64_t> sent, got;  // chunks, by peer
  std::atomic<int> state = kSuccess, looks_left = 0;
  std::shared_ptr<Connecting> connecting;  // under all_mutex
  std::atomic<bool> stop = false, busy = false;
  std::mutex mutex;
  std::condition_variable there;
  std::deque<std::pair<std::function<void()>, FakeStream*>> queue;
  bool ending = false;
  std::thread worker;

  void start() {
    worker = std::thread([this] { work(); });
    std::lock_guard lock(all_mutex);
    all.insert(this);
  }
  void attach() {
    const int fd = ::shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    mapped = bytes_of_region(size);
    if (fd < 0 || ::ftruncate(fd, off_t(mapped)) != 0) std::abort();
    void* p = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) std::abort();
    ::close(fd);
    region = static_cast<Region*>(p);
    region->attached++;
    wait([&] { return region->attached.load() >= size; });
    if (rank == 0) ::shm_unlink(name.c_str());
  }
  void put(FakeStream* stream, std::function<void()> task) {
    if (stream) stream->issued++;
    std::lock_guard lock(mutex);
    queue.emplace_back(std::move(task), stream);
    there.notify_one();
  }
  void work() {
    while (true) {
      std::pair<std::function<void()>, FakeStream*> task;
      {
        std::unique_lock lock(mutex);
        busy = false;
        there.wait(lock, [&] { return ending || stop || !queue.empty(); });
        if (queue.empty()) return;
        task = std::move(queue.front());
        queue.pop_front();
        busy = true;
      }
      try {
        task.first();
      } catch (const Stopped&) {  // an aborted kernel ends, its results are nobody's
      }
      if (task.second) task.second->done++;
    }
  }
  template <class F>
  void wait(const F& done) {
    for (int i = 0; !done(); i++) {
      if (stop) throw Stopped();
      if (i < 50)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    // A broken one does nothing more.
    while (state != kSuccess && state != kInProgress) {
      if (stop) throw Stopped();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void meet() {
    const int64_t all_of_us = ++meetings * size;
    region->arrived++;
    wait([&] { return region->arrived.load() >= all_of_us; });
  }
  std::byte* slot(int r) { return reinterpret_cast<std::byte*>(region) + kHead + size_t(r) * kChunk; }
  Mailbox& mailbox(int from, int to) {
    auto* first = reinterpret_cast<Mailbox*>(slot(size));
    return first[from * size + to];
  }
  // Each rank shows n bytes at most a time; use(slots, at, n) takes what it wants of them all.
  void in_chunks(const std::byte* mine, size_t bytes, const std::function<void(size_t at, size_t n)>& use) {
    for (size_t at = 0; at < bytes; at += kChunk) {
      const size_t n = std::min(kChunk, bytes - at);
      if (mine) std::memcpy(slot(rank), mine + at, n);
      meet();
      use(at, n);
      meet();
    }
  }
  // All move on together, so none waits for another's place in the list.
  void exchange(std::vector<Op> ops) {
    std::vector<size_t> at(ops.size(), 0);
    std::vector<bool> over(ops.size(), false);
    auto step = [&] {
      std::set<std::pair<bool, int>> waits;  // an earlier one of this peer and direction is not over
      bool all_over = true;
      for (size_t i = 0; i < ops.size(); i++) {
        Op& o = ops[i];
        if (over[i]) continue;
        all_over = false;
        if (!waits.insert({o.send, o.peer}).second) continue;
        Mailbox& box = o.send ? mailbox(rank, o.peer) : mailbox(o.peer, rank);
        const size_t n = std::min(kMail, o.bytes - at[i]);
        if (o.send) {
          if (at[i] < o.bytes && box.read.load() == sent[o.peer]) {
            std::memcpy(box.data.data(), o.data + at[i], n);
            at[i] += n, sent[o.peer]++;
            box.written.store(sent[o.peer]);
          }
          // A send is over when all of it was received.
          if (at[i] == o.bytes && box.read.load() == sent[o.peer]) over[i] = true;
        } else if (box.written.load() > got[o.peer]) {
          std::memcpy(o.data + at[i], box.data.data(), n);
          at[i] += n, got[o.peer]++;
          box.read.store(got[o.peer]);
          if (at[i] == o.bytes) over[i] = true;
        }
      }
      return all_over;
    };
    wait(step);
  }
};

namespace {

size_t size_of_type(DataType t) {
  switch (t) {
    case kInt8:
    case kUint8:
      return 1;
    case kFloat16:
    case kBfloat16:
      return 2;
    case kInt32:
    case kFloat32:
      return 4;
    default:
      return 8;
  }
}

template <class T, class Wide>
void add_as(ncclComm* c, RedOp op, std::byte* out, size_t first, size_t n) {
  for (size_t i = 0; i < n; i++) {
    Wide total{};
    for (int k = 0; k < c->size; k++) {
      const int r = int((first + i + 1 + size_t(k)) % size_t(c->size));  // another order at each place
      T x;
      std::memcpy(&x, c->slot(r) + i * sizeof(T), sizeof(T));
      if (k == 0)
        total = Wide(x);
      else if (op == kMax)
        total = std::max(total, Wide(x));
      else
        total = total + Wide(x);
    }
    const T rounded = T(total);
    std::memcpy(out + i * sizeof(T), &rounded, sizeof(T));
  }
}
// n elements of the slots, from the first on; `first` is their place in the whole.
void add(ncclComm* c, DataType t, RedOp op, std::byte* out, size_t first, size_t n) {
  switch (t) {
    case kFloat64:
      return add_as<double, double>(c, op, out, first, n);
    case kFloat32:
      return add_as<float, float>(c, op, out, first, n);
    case kFloat16:
      return add_as<f16, float>(c, op, out, first, n);
    case kBfloat16:
      return add_as<bf16, float>(c, op, out, first, n);
    case kInt64:
      return add_as<int64_t, int64_t>(c, op, out, first, n);
    case kInt32:
      return add_as<int32_t, int32_t>(c, op, out, first, n);
    default:
      std::abort();
  }
}

thread_local int depth = 0;
struct Grouped {
  ncclComm* comm;
  FakeStream* stream;
  Op op;
};
thread_local std::vector<Grouped> grouped;

FakeStream* stream_of(CudaStream s) {
  return reinterpret_cast<FakeStream*>(s);
}
std::atomic<const std::byte*> forbidden = nullptr, forbidden_end = nullptr;
const std::byte* in(const void* p) {
  if (p >= forbidden && p < forbidden_end) misused++;
  return static_cast<const std::byte*>(p);
}
std::byte* out(void* p) {
  return static_cast<std::byte*>(p);
}

Result usable(ncclComm* c) {
  std::lock_guard lock(all_mutex);
  if (!all.count(c)) {
    misused++;
    return kInvalidArgument;
  }
  if (c->looks_left > 0 || c->connecting) {
    misused++;
    return kInvalidUsage;
  }
  return Result(c->state.load());
}
Result in_progress(ncclComm* c) {
  if (c->blocking) return kSuccess;
  c->looks_left = c->rank == 0 ? 30 : later_looks.load();
  return kInProgress;
}
// A collective: `task` on the communicator's thread.
Result put(ncclComm* c, CudaStream s, std::function<void()> task) {
  if (const Result r = usable(c); r != kSuccess) return r;
  c->put(stream_of(s), std::move(task));
  return in_progress(c);
}

bool known(const Config* config) {
  return config->magic == Config().magic && config->size >= 24 && config->size <= 256 &&
         config->version >= 21400 && config->version <= FAKE_VERSION;
}

Result group_end() {
  if (--depth > 0) return kSuccess;
  std::vector<Grouped> now;
  now.swap(grouped);
  std::map<ncclComm*, std::pair<FakeStream*, std::vector<Op>>> by_comm;
  for (const Grouped& g : now) {
    auto& [stream, ops] = by_comm[g.comm];
    stream = g.stream, ops.push_back(g.op);
  }
  Result worst = kSuccess;
  auto connecting = std::make_shared<Connecting>();
  for (const Grouped& g : now) {
    Mailbox& box =
        g.op.send ? g.comm->mailbox(g.comm->rank, g.op.peer) : g.comm->mailbox(g.op.peer, g.comm->rank);
    box.came[g.op.send ? 0 : 1] = 1;
    connecting->peers.push_back(&box.came[g.op.send ? 1 : 0]);
  }
  for (auto& [c, work] : by_comm) {
    const Result r = put(c, reinterpret_cast<CudaStream>(work.first),
                         [c = c, ops = std::move(work.second)] { c->exchange(ops); });
    if (r != kSuccess) worst = r;
    std::lock_guard lock(all_mutex);
    c->connecting = connecting;
  }
  return worst;
}
Result message(bool send, const void* p, size_t n, DataType t, int peer, ncclComm* c, CudaStream s) {
  if (peer < 0 || !c || peer >= c->size || !p) return kInvalidArgument;
  depth++;
  grouped.push_back({c, stream_of(s), {send, const_cast<std::byte*>(in(p)), n * size_of_type(t), peer}});
  return group_end();
}

void close_comm(ncclComm* c) {
  {
    std::lock_guard lock(all_mutex);
    all.erase(c);
    if (c->connecting) c->connecting->over = true;
  }
  {
    std::lock_guard lock(c->mutex);
    c->ending = true;
    c->there.notify_all();
  }
  c->worker.join();
  if (c->region) ::munmap(c->region, c->mapped);
  delete c;
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* v) {
  *v = FAKE_VERSION;
  return kSuccess;
}
Result ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> n = 0;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/trireme_fake_nccl_%d_%d_%x", int(::getpid()), n++,
                std::random_device()());
  return kSuccess;
}
Result ncclCommInitRankConfig(ncclComm** to, int size, UniqueId id, int rank, Config* config) {
  if (!to || size < 1 || rank < 0 || rank >= size || !config || !known(config)) return kInvalidArgument;
  if (std::strncmp(id.internal, "/trireme_fake_nccl_", 19) != 0) return kInvalidArgument;
  auto* c = new ncclComm;
  c->rank = rank, c->size = size, c->name = id.internal, c->blocking = config->blocking != 0;
  by_init++;
  c->looks_left = 3;
  c->state = kInProgress;
  c->start();
  c->put(nullptr, [c] {
    c->attach();
    int expected = kInProgress;
    c->state.compare_exchange_strong(expected, kSuccess);
  });
  *to = c;
  return kInProgress;
}
#if !defined(FAKE_WITHOUT_SPLIT)
Result ncclCommSplit(ncclComm* c, int color, int key, ncclComm** to, Config* config) {
  if (!to || !config || !known(config)) return kInvalidArgument;
  *to = nullptr;
  by_split++;
  c->state = kInProgress;
  struct Wish {
    int color, key;
    char name[64];
  };
  auto split = [c, color, key, to, blocking = config->blocking != 0] {
    Wish mine{color, key, {}};
    UniqueId id;
    ncclGetUniqueId(&id);
    std::memcpy(mine.name, id.internal, sizeof mine.name);
    std::memcpy(c->slot(c->rank), &mine, sizeof mine);
    c->meet();
    std::vector<std::pair<int, int>> order;  // key, rank
    std::vector<Wish> wishes(size_t(c->size));
    for (int r = 0; r < c->size; r++) {
      std::memcpy(&wishes[size_t(r)], c->slot(r), sizeof(Wish));
      if (wishes[size_t(r)].color == color) order.push_back({wishes[size_t(r)].key, r});
    }
    c->meet();
    if (color >= 0) {
      std::sort(order.begin(), order.end());
      auto* child = new ncclComm;
      child->size = int(order.size()), child->blocking = blocking;
      for (size_t i = 0; i < order.size(); i++)
        if (order[i].second == c->rank) child->rank = int(i);
      child->name = wishes[size_t(order[0].second)].name;
      child->looks_left = 3, child->state = kInProgress;
      child->start();
      child->put(nullptr, [child] {
        child->attach();
        int expected = kInProgress;
        child->state.compare_exchange_strong(expected, kSuccess);
      });
      *to = child;
    }
    int expected = kInProgress;
    c->state.compare_exchange_strong(expected, kSuccess);
  };
  c->put(nullptr, split);
  return kInProgress;
}
#endif
Result ncclCommFinalize(ncclComm* c) {
  if (const Result r = usable(c); r != kSuccess) return r;
  c->state = kInProgress;
  c->put(nullptr, [c] {
    int expected = kInProgress;
    c->state.compare_exchange_strong(expected, kSuccess);
  });
  return kInProgress;
}
Result ncclCommDestroy(ncclComm* c) {
  if (const Result r = usable(c); r != kSuccess) return r;
  close_comm(c);
  return kSuccess;
}
Result ncclCommAbort(ncclComm* c) {
  {
    std::lock_guard lock(all_mutex);
    if (!all.count(c)) {
      misused++;
      return kInvalidArgument;
    }
  }
  aborted++;
  c->stop = true;
  close_comm(c);
  return kSuccess;
}
Result ncclCommGetAsyncError(ncclComm* c, Result* r) {
  std::lock_guard lock(all_mutex);
  if (!all.count(c)) {
    misused++;
    return kInvalidArgument;
  }
  *r = Result(c->state.load());
  if (*r == kSuccess && c->connecting) {
    if (!c->connecting->done()) return *r = kInProgress, kSuccess;
    c->connecting = nullptr;
  }
  if (*r == kSuccess && c->looks_left > 0) {
    if (--c->looks_left > 0) *r = kInProgress;
  } else if (*r == kInProgress && c->looks_left > 1) {
    c->looks_left--;
  }
  return kSuccess;
}
const char* ncclGetErrorString(Result r) {
  return r == kRemoteError     ? "remote process exited or there was a network error"
         : r == kInvalidUsage  ? "invalid usage"
         : r == kInternalError ? "internal error"
                               : "an error";
}
const char* ncclGetLastError(ncclComm*) {
  return "";
}
Result ncclAllReduce(const void* from, void* to, size_t n, DataType t, RedOp op, ncclComm* c, CudaStream s) {
  return put(c, s, [=] {
    c->in_chunks(in(from), n * size_of_type(t), [&](size_t at, size_t bytes) {
      add(c, t, op, out(to) + at, at / size_of_type(t), bytes / size_of_type(t));
    });
  });
}
Result ncclReduce(const void* from, void* to, size_t n, DataType t, RedOp op, int root, ncclComm* c,
                  CudaStream s) {
  return put(c, s, [=] {
    c->in_chunks(in(from), n * size_of_type(t), [&](size_t at, size_t bytes) {
      if (c->rank == root) add(c, t, op, out(to) + at, at / size_of_type(t), bytes / size_of_type(t));
    });
  });
}
Result ncclBroadcast(const void* from, void* to, size_t n, DataType t, int root, ncclComm* c, CudaStream s) {
  return put(c, s, [=] {
    c->in_chunks(c->rank == root ? in(from) : nullptr, n * size_of_type(t),
                 [&](size_t at, size_t bytes) { std::memcpy(out(to) + at, c->slot(root), bytes); });
  });
}
Result ncclAllGather(const void* from, void* to, size_t n, DataType t, ncclComm* c, CudaStream s) {
  return put(c, s, [=] {
    const size_t shard = n * size_of_type(t);
    // The own shard may be part of the whole.
    std::vector<std::byte> mine(in(from), in(from) + shard);
    c->in_chunks(mine.data(), shard, [&](size_t at, size_t bytes) {
      for (int r = 0; r < c->size; r++) std::memcpy(out(to) + size_t(r) * shard + at, c->slot(r), bytes);
    });
  });
}
Result ncclReduceScatter(const void* from, void* to, size_t n, DataType t, RedOp op, ncclComm* c,
                         CudaStream s) {
  return put(c, s, [=] {
    const size_t shard = n * size_of_type(t);
    for (int r = 0; r < c->size; r++)
      c->in_chunks(in(from) + size_t(r) * shard, shard, [&](size_t at, size_t bytes) {
        if (c->rank == r)
          add(c, t, op, out(to) + at, (size_t(r) * shard + at) / size_of_type(t), bytes / size_of_type(t));
      });
  });
}
Result ncclSend(const void* p, size_t n, DataType t, int peer, ncclComm* c, CudaStream s) {
  return message(true, p, n, t, peer, c, s);
}
Result ncclRecv(void* p, size_t n, DataType t, int peer, ncclComm* c, CudaStream s) {
  return message(false, p, n, t, peer, c, s);
}
Result ncclGroupStart() {
  depth++;
  return kSuccess;
}
Result ncclGroupEnd() {
  return depth == 0 ? kInvalidUsage : group_end();
}
Result ncclCommRegister(ncclComm* c, void* p, size_t n, void** handle) {
  if (const Result r = usable(c); r != kSuccess) return r;
  live_registrations++;
  *handle = new std::pair<void*, size_t>(p, n);
  return kSuccess;
}
Result ncclCommDeregister(ncclComm* c, void* handle) {
  delete static_cast<std::pair<void*, size_t>*>(handle);
  live_registrations--;
  return kSuccess;
}

void fakeNcclBreak(int rank, int result) {
  std::lock_guard lock(all_mutex);
  for (ncclComm* c : all)
    if (rank < 0 || c->rank == rank) c->state = result;
}
int fakeNcclRegistered() {
  return live_registrations;
}
void fakeNcclMade(int* init, int* split) {
  *init = by_init, *split = by_split;
}
int fakeNcclAborted() {
  return aborted;
}
void fakeNcclLooks(int n) {
  later_looks = n;
}
void fakeNcclForbid(const void* begin, int64_t bytes) {
  forbidden = static_cast<const std::byte*>(begin), forbidden_end = forbidden + bytes;
}
int fakeNcclMisused() {
  return misused;
}

}  // extern "C"
