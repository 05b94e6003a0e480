#include "runtime/pipeline_comm.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/timed.h"

namespace trireme {
namespace {
constexpr Axis kPp[] = {Axis::pp};
}

PipelineComm::PipelineComm(std::span<const Schedule> schedules, CommSet& comms, Device& device)
    : holders_(schedules.back()),
      rank_(comms.mesh().coord(comms.rank(), Axis::pp)),
      device_(device),
      compute_(device.stream("compute")),
      comms_{&comms.along(kPp), &comms.along_again(kPp)} {
  const auto size = size_t(comms.mesh().size(Axis::pp));
  for (std::vector<Stream>& s : streams_) s.resize(2 * size);
  for (const Schedule& schedule : schedules) {
    require(schedule.ranks.size() == size, "a schedule of as many ranks as pp");
    const std::vector<Action>& mine = schedule.ranks[size_t(rank_)];
    make_streams(mine);
    sent_.reserve(mine.size());
  }
}

void PipelineComm::make_streams(std::span<const Action> mine) {
  for (const Action& a : mine) {
    if (a.kind == Act::SendF) make_stream(forward, true, rank_of(a.stage + 1, a.mb));
    if (a.kind == Act::RecvF) make_stream(forward, false, rank_of(a.stage - 1, a.mb));
    if (a.kind == Act::SendB) make_stream(backward, true, rank_of(a.stage - 1, a.mb));
    if (a.kind == Act::RecvB) make_stream(backward, false, rank_of(a.stage + 1, a.mb));
  }
}

// What ended the run has told the group, so what is under way comes to an end.
PipelineComm::~PipelineComm() {
  for (const Lane& lane : lanes_) try {
      device_.sync(lane.stream);
    } catch (const std::exception&) {
      // It is told by whoever caught what ended the run.
    }
}

void PipelineComm::make_stream(Way way, bool send, int peer) {
  Stream& s = streams_[way][size_t(send ? peer : ranks() + peer)];
  if (s.id != 0) return;
  const std::string name =
      fmt::format("pp {} {} {}", way == forward ? "forward" : "backward", send ? "to" : "from", peer);
  s = device_.stream(name);
  lanes_.push_back({s, name});
}

Stream PipelineComm::stream(Way way, bool send, int peer) const {
  const Stream s = streams_[way][size_t(send ? peer : ranks() + peer)];
  require(s.id != 0, "a message on a way that the schedule has not");
  return s;
}

// After what compute was given: it made the tensor, or used the memory before.
void PipelineComm::start(Way way, const P2p& op, Stream s) {
  device_.wait(s, device_.record(compute_));
  comms_[way]->p2p({.ops = {&op, 1}}, s);
}

void PipelineComm::send(Way way, int to, Owned tensor, int number) {
  const Stream s = stream(way, true, to);
  start(way, {.buf = *tensor, .peer = to, .send = true}, s);
  sent_.push_back({.tensor = std::move(tensor), .read = device_.record(s), .number = number});
}

Event PipelineComm::receive(Way way, int from, const Tensor& into) {
  const Stream s = stream(way, false, from);
  start(way, {.buf = into, .peer = from, .send = false}, s);
  return device_.record(s);
}

void PipelineComm::wait(Event e) {
  Timed t(waited_s_);
  device_.wait(compute_, e);
}

void PipelineComm::free(int number) {
  const auto it = std::find_if(sent_.begin(), sent_.end(), [&](const Sent& s) { return s.number == number; });
  require(it != sent_.end(), "a message is freed that was not sent");
  wait(it->read);
  sent_.erase(it);
}

void PipelineComm::free_all() {
  for (const Sent& s : sent_) wait(s.read);
  sent_.clear();
}

}  // namespace trireme
