#include "train/async_saver.h"

#include "base/rounding.h"
#include "base/timed.h"
#include "device/device_memory.h"
#include "train/checkpointing.h"

namespace trireme {
namespace {

constexpr int64_t kAlign = 64;
int64_t aligned(int64_t bytes) {
  return round_up(bytes, kAlign);
}

}  // namespace

AsyncSaver::AsyncSaver(const RunSpec& run, CommSet* comms, PhaseHook hook, CompleteManifest complete)
    : run_(run),
      root_(checkpoint_root(run.train.dir)),
      comms_(comms),
      hook_(std::move(hook)),
      complete_(std::move(complete)) {}

AsyncSaver::~AsyncSaver() {
  thread_.wait();
}

void AsyncSaver::save(const StageRunner& runner, int64_t step,
                      const std::function<void(int64_t step)>& agree) {
  require(!writing_ && !publishing_, "a save begins while another is under way");
  snapshot(runner, step);
  if (agree) agree(step);
  begin_s_ = now_s();
  if (!comms_) {
    publishing_ = true;
    thread_.start([this] {
      {
        CheckpointWriter writer(root_, step_, hook_);
        writer.write(rank_file_name(0), tensors_);
        folder_ = writer.publish(manifest_);
      }
      prune_after_save(run_, step_, hook_);
    });
    return;
  }
  if (!open_folder()) return;
  writing_ = true;
  thread_.start([this] {
    if (writer_)
      writer_->write(rank_file_name(0), tensors_);
    else if (!tensors_.empty())
      file_ = write_parts(folder_, rank_file_name(comms_->rank()), tensors_);
  });
}

// Rank 0 makes the folder that all write into. False: it could not, and all know.
bool AsyncSaver::open_folder() {
  std::string told, error;
  Fault fault = Fault::run;
  if (first()) {
    try {
      writer_ = std::make_unique<CheckpointWriter>(root_, step_, hook_);
      told = writer_->folder().string();
    } catch (const Error& e) {
      error = e.what();
      fault = e.fault;
    }
  }
  folder_ = broadcast_text(comms_->control(), told);
  if (!error.empty()) end(error, fault);
  return !folder_.empty();
}

void AsyncSaver::snapshot(const StageRunner& runner, int64_t step) {
  step_ = step;
  manifest_ = checkpoint_manifest(runner, run_, step, complete_);
  tensors_ = checkpoint_tensors(runner);
  file_.reset();
  int64_t bytes = 0;
  for (const NamedTensor& t : tensors_) bytes += aligned(t.host_data.bytes());
  if (bytes > capacity_) {
    memory_.reset();
    memory_.reset(new std::byte[size_t(bytes)]);
    capacity_ = bytes;
  }
  std::byte* at = memory_.get();
  for (NamedTensor& t : tensors_) {
    const Tensor copy(at, t.host_data.shape, t.host_data.dtype);
    runner.device().download(at, t.host_data);
    // The hash covers the original, if the processor can read it: a save checks the copy with it.
    const std::byte* original = device_copy_of(t.host_data.data) ? at : t.host_data.data;
    t.xxh3 = hash64(original, size_t(copy.bytes()));
    t.host_data = copy;
    refuse_nonfinite(t, step);
    at += aligned(copy.bytes());
  }
}

void AsyncSaver::poll() {
  if (writing_) {
    if (agree_max(comms_->control(), thread_.done() ? 0 : 1) == 0) ranks_written();
  } else if (publishing_ && thread_.done()) {
    published();
  }
}

void AsyncSaver::finish() {
  if (writing_) ranks_written();
  if (publishing_) published();
}

// Every rank's file is there, or says why not; rank 0 goes on to publish.
void AsyncSaver::ranks_written() {
  std::string error = thread_.wait();
  Fault fault = thread_.fault();
  writing_ = false;
  // A failure is "!", the digit of its fault, and its text.
  const std::string mine = !error.empty() ? fmt::format("!{}{}", int(fault), error)
                           : file_        ? file_line(*file_)
                                          : "";
  const std::vector<std::string> all = gather_texts(comms_->control(), mine);
  if (!first()) return;
  for (size_t r = 0; r < all.size(); r++)
    if (all[r].starts_with('!') && error.empty()) {
      error = fmt::format("rank {}: {}", r, all[r].substr(2));
      fault = Fault(all[r][1] - '0');
    }
  if (!error.empty()) {
    writer_.reset();
    return end(error, fault);
  }
  for (size_t r = 1; r < all.size(); r++)
    if (!all[r].empty()) writer_->add(file_of_line(all[r]));
  publishing_ = true;
  thread_.start([this] {
    folder_ = writer_->publish(manifest_);
    writer_.reset();
    prune_after_save(run_, step_, hook_);
  });
}

void AsyncSaver::published() {
  std::string error = thread_.wait();
  publishing_ = false;
  writer_.reset();
  end(error, thread_.fault());
}

void AsyncSaver::end(std::string error, Fault fault) {
  ended_.push_back({.step = step_,
                    .folder = error.empty() ? folder_ : fs::path(),
                    .error = std::move(error),
                    .fault = fault,
                    .write_s = now_s() - begin_s_});
}

}  // namespace trireme
