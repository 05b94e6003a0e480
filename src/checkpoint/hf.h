// Hugging Face folders in and out: config.json, model.safetensors (or shards with an index), tokenizer files.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/hasher.h"
#include "checkpoint/fp8.h"
#include "checkpoint/hf_names.h"
#include "checkpoint/parts.h"
#include "checkpoint/safetensors.h"
#include "spec/hf_storage.h"

namespace trireme {

// The weights of a folder, held against the model when opened: every tensor that the model needs is there in
// its shape, in f32, bf16 or f16; nothing else is, save the buffers of hf_is_buffer(). A head beside a tied
// embedding must be equal to it. Where config.json says so (hf_storage), matrices may be 8-bit floats with
// their scales, and layers that predict further tokens may follow, which are ignored. Anything else is one
// Error that names the tensor.
class HfFolder {
 public:
  HfFolder(const fs::path& folder, const ModelSpec&);

  // Elements `range` of `box` of a parameter (trireme's name) into contiguous host memory of type f32, bf16
  // or f16: exact where the type can hold the values, else to nearest, ties to even.
  void read(std::string_view name, const Slice& box, const Range& range, const Tensor& dst) const;
  void read(std::string_view name, const Tensor& dst) const;  // the whole of it

  DType dtype() const { return dtype_; }     // of the token embedding
  DType dtype(std::string_view name) const;  // that a parameter is stored in; of 8-bit floats dtype()
  // Bytes of the tensors that are read, and a hash of their names, types, shapes, and of samples of their
  // bytes: up to 256 KiB of each tensor, spread evenly. Files and their order do not matter.
  FileDigest sampled_digest() const;
  // Tensors that are stored and not read: buffers, and tensors of types that no weight has.
  const std::vector<std::string>& ignored() const { return ignored_; }

 private:
  struct Source {
    HfPlace place;
    const SafetensorsEntry* entry;
    const std::byte* data;
    Fp8Matrix fp8 = {};  // of 8-bit floats
  };
  struct Tensors;
  void open_files(const ModelSpec&, Tensors&);
  void add_tied_alias(const ModelSpec&, Tensors&) const;
  bool may_be_absent(const ModelSpec&, std::string_view name) const;
  void match(const ModelSpec&, Tensors);
  void check_tied_head(const Tensors&) const;
  Fp8Matrix fp8_of(const Tensors&, const std::string& name, const HfPlace&,
                   std::set<std::string>& used) const;
  bool is_further_layer(const ModelSpec&, std::string_view bare) const;

  fs::path folder_;
  HfStorage storage_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Source, std::less<>> sources_;  // by trireme's name
  std::vector<std::string> ignored_;
  DType dtype_ = DType::f32;
};

// Fills dst (contiguous host memory, the export's type, the whole tensor's shape) with a parameter.
using TensorGetter = std::function<void(std::string_view name, const Tensor& dst)>;

struct HfOptions {
  DType dtype = DType::f32;  // of the tensors: f32, bf16 or f16
  // Of each tensor, by one of the parameters in it; empty: dtype. config.json says dtype all the same.
  std::function<DType(std::string_view name)> dtype_of = {};
  std::optional<int64_t> bos = {};  // token ids for config.json
  std::vector<int64_t> eos = {};
  std::optional<int64_t> pad = {};
  std::vector<fs::path> copy = {};    // tokenizer.json, tokenizer_config.json, ...: under their own names
  std::string tokenizer_config = {};  // text of tokenizer_config.json where none is copied; empty: none
};
// The files of a folder that may be copied beside an export: its tokenizer's, and the defaults of generation.
std::vector<fs::path> hf_companions(const fs::path& folder);

// Writes config.json, model.safetensors and the copies, one tensor in memory at a time. The folder appears
// whole or not at all; one that is there is replaced if it holds nothing but such files, else refused.
void export_hf(const fs::path& folder, const ModelSpec&, const TensorGetter&, const HfOptions& = {});

}  // namespace trireme
