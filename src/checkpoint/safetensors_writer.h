// Writes a safetensors file in one pass: header first, then each tensor's bytes, nothing kept in memory.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/hash.h"
#include "checkpoint/safetensors.h"

namespace trireme {

// What one tensor of the file will be.
struct SafetensorsItem {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// The order of a file: falling type rank, then name, as the reference library writes, so that equal contents
// are equal bytes. The header is padded with spaces to a multiple of 8, and so every tensor is aligned to its
// type.
std::vector<SafetensorsItem> file_order(std::vector<SafetensorsItem>);

// The first 8 + N bytes of a file of these items, which are in file order. Duplicate names are a bug.
std::string safetensors_header(std::span<const SafetensorsItem>, const Metadata&);

class SafetensorsWriter {
 public:
  // Writes the header. The file takes its name on commit(), else it leaves no trace.
  SafetensorsWriter(const fs::path&, std::vector<SafetensorsItem>, const Metadata& = {});
  const std::vector<SafetensorsItem>& items() const { return items_; }  // in file order
  // The data of items() in order; a tensor may come in several calls.
  void write(const void* data, size_t bytes);
  FileDigest commit();

 private:
  std::vector<SafetensorsItem> items_;
  AtomicFile file_;
  Hasher hasher_;
  int64_t written_ = 0, expected_ = 0;  // bytes, header included
};

}  // namespace trireme
