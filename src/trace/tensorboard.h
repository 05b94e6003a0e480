// TensorBoard event files: `tensorboard --logdir runs` shows a run while it trains.
//
// A file is a sequence of TFRecords, little endian:
//   u64 length | u32 masked crc32c of the 8 bytes before | length bytes | u32 masked crc32c of those bytes
// Each record is a protobuf message tensorflow.Event, written here by hand: wall time, step, and scalars by
// tag.
//
// Every start of a run writes a file of its own, whose name sorts behind the earlier ones'. It begins with a
// SessionLog START of the first step that it will write: TensorBoard then drops what earlier files hold from
// that step on, so a resumed run shows no step twice and none that never counted.
#pragma once
#include <string>
#include <string_view>

#include "base/file.h"
#include "trace/metrics.h"

namespace trireme {

uint32_t crc32c(std::string_view bytes);         // Castagnoli's polynomial, as iSCSI and TFRecord use it
uint32_t masked_crc32c(std::string_view bytes);  // rotated and shifted: a record may hold a crc of itself
std::string tfrecord(std::string_view payload);

class TensorBoardFile {
 public:
  // Steps after last_step will follow. `config` is shown as text. Nothing is written before the first step.
  TensorBoardFile(fs::path folder, int64_t last_step, std::string config);
  ~TensorBoardFile();
  TensorBoardFile(const TensorBoardFile&) = delete;

  void write(const StepMetrics&);                 // one record, one write(2)
  const fs::path& path() const { return path_; }  // empty before the first step

 private:
  void open();
  void append(std::string_view event);

  fs::path folder_, path_;
  int64_t last_step_;
  std::string config_;
  int fd_ = -1;
};

}  // namespace trireme
