#include "runtime/recording.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "comm/meta/meta_comm.h"
#include "runtime/composed_tape.h"

namespace trireme {

class StepRecorder::RecordedDevice final : public Device {
 public:
  RecordedDevice(Device& inner, StepRecorder& r) : inner_(inner), r_(r) {}
  std::string_view name() const override { return inner_.name(); }
  bool has_data() const override { return inner_.has_data(); }
  bool native(DType t) const override { return inner_.native(t); }
  std::byte* reserve(int64_t bytes) override { return inner_.reserve(bytes); }
  void release(std::byte* p, int64_t bytes) override { inner_.release(p, bytes); }
  bool own_memory() const override { return inner_.own_memory(); }
  std::byte* reserve_host(int64_t bytes) override {
    std::byte* p = inner_.reserve_host(bytes);
    host_[p] = bytes;
    return p;
  }
  void release_host(std::byte* p, int64_t bytes) override {
    host_.erase(p);
    inner_.release_host(p, bytes);
  }
  void upload(const Tensor& dst, const void* src) override { inner_.upload(dst, src); }
  void download(void* dst, const Tensor& src) override { inner_.download(dst, src); }
  // What travels to and from a disk is told; other tasks are somebody's who is recorded otherwise.
  void enqueue(Stream s, HostTask task) override {
    if (r_.runner_ && task.disk_read + task.disk_written > 0)
      r_.put(PieceKind::op, s.id, task.disk_read > 0 ? kDiskRead : kDiskWrite).cost = {
          .bytes_read = task.disk_read, .bytes_written = task.disk_written};
    inner_.enqueue(s, task);
  }
  Kernels& kernels() override { return inner_.kernels(); }

  void copy(const Tensor& dst, const Tensor& src, Stream s) override {
    if (!r_.runner_) return inner_.copy(dst, src, s);
    if (s.id != 0 && (of_host(dst) || of_host(src))) {  // over the link between them, beside compute
      Piece& p = r_.put(PieceKind::op, s.id, of_host(src) ? kHostRead : kHostWrite);
      (of_host(src) ? p.cost.bytes_read : p.cost.bytes_written) = src.bytes();
      return inner_.copy(dst, src, s);
    }
    const size_t i = r_.tape_.pieces.size();
    r_.put(PieceKind::op, s.id, "copy").cost = {.bytes_read = src.bytes(), .bytes_written = dst.bytes()};
    inner_.copy(dst, src, s);
    r_.tape_.pieces[i].end_ns = r_.now();
  }

  Stream stream(std::string_view name) override {
    const Stream s = inner_.stream(name);
    if (r_.streams_.size() <= size_t(s.id)) r_.streams_.resize(size_t(s.id) + 1);
    if (s.id != 0) r_.streams_[size_t(s.id)] = name;
    return s;
  }

  Event record(Stream s) override {
    const Event e = inner_.record(s);
    if (r_.runner_ && e.stream != 0) {
      auto& marks = r_.marks_.at(size_t(e.stream));
      const int64_t issued = r_.issued_.at(size_t(e.stream));
      if (marks.empty() || marks.back().issued != issued) marks.push_back({e.mark, issued});
    }
    return e;
  }

  // What compute did before is over when its thread comes here: other streams' waits for it are none.
  void wait(Stream s, Event e) override {
    if (!r_.runner_ || e.stream == 0 || e.stream == s.id) return inner_.wait(s, e);
    waiting(s, e.stream, mark_of(e), [&] { inner_.wait(s, e); });
  }
  void sync(Stream s) override {
    if (!r_.runner_ || s.id == 0) return inner_.sync(s);
    waiting({}, s.id, r_.issued_.at(size_t(s.id)), [&] { inner_.sync(s); });
  }

 private:
  template <class Wait>
  void waiting(Stream s, int on, int64_t mark, const Wait& wait) {
    const size_t i = r_.tape_.pieces.size();
    Piece& p = r_.put(PieceKind::wait, s.id, "wait");
    p.on = on, p.mark = mark;
    wait();
    r_.tape_.pieces[i].met_ns = r_.tape_.pieces[i].end_ns = r_.now();
  }
  // An event from before start() holds up nothing that was issued since.
  int64_t mark_of(Event e) const {
    const std::vector<Mark>& marks = r_.marks_.at(size_t(e.stream));
    auto after = std::upper_bound(marks.begin(), marks.end(), e.mark,
                                  [](int64_t mark, const Mark& m) { return mark < m.mark; });
    return after == marks.begin() ? 0 : std::prev(after)->issued;
  }
  bool of_host(const Tensor& t) const {
    auto after = host_.upper_bound(t.data);
    return after != host_.begin() && t.data < std::prev(after)->first + std::prev(after)->second;
  }
  Device& inner_;
  StepRecorder& r_;
  std::map<const std::byte*, int64_t> host_;  // ranges of reserve_host(), their bytes
};

class StepRecorder::RecordedCommunicator final : public WrappedCommunicator {
 public:
  RecordedCommunicator(std::unique_ptr<Communicator> inner, Device* device, StepRecorder& r, int group)
      : WrappedCommunicator(std::move(inner), device), r_(r), recorded_(group) {}

 private:
  void before(const CommCall& c) override { r_.issued(c, recorded_); }
  // On compute it is done within the call, on the rank's thread.
  void finished(const CommCall& c, int64_t begin_ns, int64_t met_ns, int64_t end_ns) override {
    if (c.stream.id == 0) r_.finished(met_ns, end_ns);
    tell(c, begin_ns, met_ns, end_ns);
  }
  StepRecorder& r_;
  int recorded_;
};

class StepRecorder::RecordedFactory final : public WrappedFactory {
 public:
  RecordedFactory(CommFactory& inner, Device& device, StepRecorder& r)
      : WrappedFactory(inner), device_(device), r_(r) {}

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int> ranks) override {
    const int group = r_.group(c->group(), {ranks.begin(), ranks.end()});
    return std::make_unique<RecordedCommunicator>(std::move(c), &device_, r_, group);
  }
  Device& device_;
  StepRecorder& r_;
};

// Agreements run on the rank's thread, so they are done when their calls return.
class StepRecorder::ControlObserver final : public CommObserver {
 public:
  ControlObserver(Communicator& control, StepRecorder& r, int group)
      : control_(control), before_(control.observe(this)), r_(r), group_(group) {}
  ~ControlObserver() override { control_.observe(before_); }
  void issued(const CommCall& c) override {
    if (before_) before_->issued(c);
    r_.issued(c, group_);
  }
  void done(const CommCall& c, int64_t begin_ns, int64_t met_ns, int64_t end_ns) override {
    if (before_) before_->done(c, begin_ns, met_ns, end_ns);
    r_.finished(met_ns, end_ns);
  }

 private:
  Communicator& control_;
  CommObserver* before_;
  StepRecorder& r_;
  int group_;
};

StepRecorder::StepRecorder(Device& device, CommFactory& factory, bool waits)
    : device_(std::make_unique<RecordedDevice>(device, *this)),
      factory_(std::make_unique<RecordedFactory>(factory, device, *this)),
      timed_(device.has_data()),
      waits_(waits) {
  std::vector<int> all(size_t(factory.world()));
  std::iota(all.begin(), all.end(), 0);
  const int world = group("control", std::move(all));
  if (factory.world() > 1) control_ = std::make_unique<ControlObserver>(factory.control(), *this, world);
}
StepRecorder::~StepRecorder() = default;

Device& StepRecorder::device() {
  return *device_;
}
CommFactory& StepRecorder::factory() {
  return *factory_;
}

int StepRecorder::group(std::string_view name, std::vector<int> ranks) {
  groups_.push_back({std::string(name), std::move(ranks)});
  return int(groups_.size()) - 1;
}

int64_t StepRecorder::now() const {
  if (!timed_) return 0;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void StepRecorder::start(StageRunner& runner, std::span<const Action> actions) {
  tape_ = {};
  tape_.rank = factory_->rank();
  cuts_.clear();
  held_.clear();
  last_on_compute_ = 0;
  messages_.clear();
  issued_.assign(streams_.size(), 0);
  marks_.assign(streams_.size(), {});
  actions_ = actions, action_ = 0;
  phase_ = layer_ = {}, microbatch_ = -1;
  runner_ = &runner;
  next_ = runner.device().kernels().observe(this);
  runner.watch().control = {.phase = [this](std::string_view phase) { enter(phase); },
                            .turn =
                                [this](const Action& a) {
                                  phase_ = name_of(a.kind);
                                  microbatch_ = a.mb;
                                },
                            .op = [this](const Op& op) { cut(&op); },
                            .stop = {}};
  put(PieceKind::op, 0, "begin");  // where the step's time begins
}

Tape StepRecorder::stop() {
  put(PieceKind::op, 0, "end");
  runner_->device().kernels().observe(next_);
  runner_->watch().control = {};
  runner_ = nullptr;
  tape_.streams = streams_, tape_.groups = groups_;
  return std::move(tape_);
}

void StepRecorder::cut(const Op* op) {
  cuts_.push_back({tape_.pieces.size(), op, tape_.keep(runner_->watch().layer), take_held()});
}

StepRecorder::BytesHeld StepRecorder::take_held() {
  Ledger& ledger = runner_->arena().ledger();
  const BytesHeld held{ledger.total(), ledger.take_high()};
  if (!tape_.pieces.empty()) {
    int64_t& most = tape_.pieces[last_on_compute_].most;
    most = std::max(most, held.most);
  }
  return held;
}

void StepRecorder::enter(std::string_view phase) {
  cut(nullptr);
  phase_ = tape_.keep(phase), microbatch_ = -1;
  const bool next_step = action_ >= actions_.size() && !actions_.empty();
  if (next_step && phase == name_of(actions_.front().kind)) action_ = 0;
  if (action_ < actions_.size()) microbatch_ = actions_[action_++].mb;
}

Piece& StepRecorder::put(PieceKind kind, int stream, std::string_view name) {
  issued_.at(size_t(stream))++;
  held_.push_back(take_held());
  if (stream == 0) last_on_compute_ = tape_.pieces.size();
  Piece& p = tape_.pieces.emplace_back();
  p.kind = kind, p.stream = stream, p.microbatch = microbatch_;
  p.name = tape_.keep(name), p.layer = layer_, p.action = phase_;
  p.begin_ns = p.met_ns = p.end_ns = now();
  p.held = p.most = held_.back().now;
  return p;
}

void StepRecorder::before(std::string_view op) {
  layer_ = tape_.keep(runner_->watch().layer);
  if (waits_) runner_->device().sync({});
  put(PieceKind::op, 0, op).launched = true;
  if (next_) next_->before(op);
}

void StepRecorder::after(std::string_view op, const Cost& cost, const Outputs& outputs) {
  if (next_) next_->after(op, cost, outputs);
  if (waits_) runner_->device().sync({});
  Piece& p = tape_.pieces.back();
  p.cost = cost, p.end_ns = now();
  const Shape& out = outputs.t[0].shape;
  p.cols = outputs.n == 0 || out.rank == 0 ? 1 : out[out.rank - 1];
  p.rows = outputs.n == 0 || p.cols == 0 ? 1 : outputs.t[0].numel() / p.cols;
}

void StepRecorder::issued(const CommCall& c, int group) {
  if (!runner_) return;
  // A batch that sends what it receives is a hop of a ring (context parallelism): all ranks of the group make
  // it, so it is recorded as a call of theirs. One message is a piece of its own on either side.
  if (c.kind == Collective::p2p && c.peer < 0 && c.payload != 2 * c.wire)
    run_failed("a step with p2p of group {} cannot be recorded: its messages' peers are not told", c.group);
  const PieceKind kind = c.peer < 0 ? PieceKind::call : c.send ? PieceKind::send : PieceKind::recv;
  Piece& p = put(kind, c.stream.id, name_of(c.kind));
  if (c.peer >= 0) {
    const TapeGroup& g = groups_[size_t(group)];
    p.peer = g.ranks[size_t(c.peer)];
    // Numbers of messages from one rank to another differ over all groups of the two.
    std::vector<int64_t>& sent = messages_[{p.peer, c.send}];
    const size_t lane = g.name.ends_with(" again");
    sent.resize(2);
    p.mark = 2 * sent[lane]++ + int64_t(lane);
  }
  p.group = group, p.algorithm = tape_.keep(c.algorithm);
  p.payload = c.payload, p.wire = c.wire;
}

void StepRecorder::finished(int64_t met_ns, int64_t end_ns) {
  if (!runner_) return;
  Piece& p = tape_.pieces.back();
  p.met_ns = std::max(p.begin_ns, met_ns), p.end_ns = end_ns;
}

Tape record_training(const RunSpec& run, const Schedule& schedule, int threads, int rank,
                     const ClusterSpec& cluster, int steps) {
  if (steps == 1)
    if (std::optional<Tape> composed = composed_training(run, schedule, threads, rank, cluster))
      return std::move(*composed);
  return record_whole_training(run, schedule, threads, rank, cluster, steps);
}

Tape record_whole_training(const RunSpec& run, const Schedule& schedule, int threads, int rank,
                           const ClusterSpec& cluster, int steps) {
  auto device = make_device("meta", {.threads = threads,
                                     .models = run.train.device,
                                     .deterministic = run.train.deterministic,
                                     .sm90_attention = run.train.attention == "sm90"});
  std::unique_ptr<CommFactory> factory = make_meta_comm(rank, int(run.world()), options_of(run, cluster));
  StepRecorder recorder(*device, *factory);
  CommSet comms(recorder.factory(), mesh_of(run.layout));
  StageRunner runner(run, RunMode::train, recorder.device(), int64_t(1) << 52, &comms);
  const std::vector<Action>& actions = schedule.ranks.at(size_t(runner.sharing().pp.rank));
  recorder.start(runner, actions);
  for (int s = 1; s <= steps; s++)
    runner.step(actions, s, run.tokens_per_step(), [](int64_t, int64_t, const HostBatch&) {});
  Tape tape = recorder.stop();
  tape.steps = steps;
  return tape;
}

}  // namespace trireme
