#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf.h"
#include "checkpoint/part_folder.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/untrusted.h"
#include "spec/hf_config.h"

namespace trireme {
namespace {

constexpr std::string_view kConfig = "config.json", kWeights = "model.safetensors";
// What an export may hold beside them.
constexpr std::array<std::string_view, 9> kCopies = {
    "tokenizer.json",     "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt",         "added_tokens.json",     "tokenizer.model",         "generation_config.json",
    "chat_template.jinja"};

bool is_copy(std::string_view name) {
  return std::find(kCopies.begin(), kCopies.end(), name) != kCopies.end();
}

// A folder of somebody's other things must not disappear under an export.
void refuse_foreign(const fs::path& folder) {
  for (const std::string& name : names_in(folder))
    if (name != kConfig && name != kWeights && !is_copy(name))
      bad_request("{} holds '{}', which no export wrote; choose a new or empty folder", folder.string(),
                  printable(name));
}

std::string torch_name_of(DType t) {
  if (t == DType::f32) return "float32";
  if (t == DType::bf16) return "bfloat16";
  if (t == DType::f16) return "float16";
  bad_request("an export in {}; right is f32, bf16 or f16", name_of(t));
}

// Puts one of our parameters into the bytes of the tensor that holds it.
void place_into(std::vector<std::byte>& theirs, const HfPlace& p, const Tensor& ours) {
  const int64_t item = size_of(ours.dtype);
  if (p.transposed) {
    const int64_t in = p.shape[1], out_total = p.their_shape[1];
    transpose_elements(item, theirs.data() + p.begin * item, out_total, ours.data, in, p.shape[0], in);
  } else {
    const int64_t in = p.shape.rank == 2 ? p.shape[1] : 1;
    std::memcpy(theirs.data() + p.begin * in * item, ours.data, size_t(ours.bytes()));
  }
}

void write_weights(const fs::path& file, const ModelSpec& model, const TensorGetter& get,
                   const HfOptions& options) {
  const std::vector<HfPlace> places = hf_places(model);
  std::map<std::string, std::vector<const HfPlace*>> parts;  // by their name
  std::vector<SafetensorsItem> items;
  for (const HfPlace& p : places) {
    std::string name = p.theirs == kHfHead ? p.theirs : std::string(hf_prefix(model)) + p.theirs;
    auto& list = parts[name];
    DType dtype = p.buffer ? DType::f32 : options.dtype_of ? options.dtype_of(p.ours) : options.dtype;
    if (list.empty()) items.push_back({name, dtype, p.their_shape});
    list.push_back(&p);
  }
  SafetensorsWriter writer(file, std::move(items), {{"format", "pt"}});
  std::vector<std::byte> ours, theirs;
  for (const SafetensorsItem& item : writer.items()) {
    theirs.assign(size_t(item.shape.numel() * size_of(item.dtype)), std::byte{0});
    for (const HfPlace* p : parts.at(item.name)) {
      ours.resize(size_t(p->shape.numel() * size_of(item.dtype)));
      Tensor t(ours.data(), p->shape, item.dtype);
      get(p->ours, t);
      place_into(theirs, *p, t);
    }
    writer.write(theirs.data(), theirs.size());
  }
  writer.commit();
}

void copy_tokenizer_file(const fs::path& from, const fs::path& folder) {
  std::string name = from.filename().string();
  if (!is_copy(name))
    bad_request("{} is no tokenizer file; right are {}", from.string(), fmt::join(kCopies, ", "));
  MappedFile source(from);
  AtomicFile copy(folder / name);
  copy.write(source.bytes().data(), source.bytes().size());
  copy.commit();
}

}  // namespace

std::vector<fs::path> hf_companions(const fs::path& folder) {
  std::vector<fs::path> out;
  for (std::string_view name : kCopies)
    if (fs::is_regular_file(folder / name)) out.push_back(folder / name);
  return out;
}

void export_hf(const fs::path& folder, const ModelSpec& model, const TensorGetter& get,
               const HfOptions& options) {
  std::string config = hf_config_json(
      model,
      {.dtype = torch_name_of(options.dtype), .bos = options.bos, .eos = options.eos, .pad = options.pad});
  refuse_foreign(folder);
  PartFolder part(folder);
  write_text_atomic(part.path() / kConfig, config);
  for (const fs::path& f : options.copy) copy_tokenizer_file(f, part.path());
  if (!options.tokenizer_config.empty())
    write_text_atomic(part.path() / "tokenizer_config.json", options.tokenizer_config);
  write_weights(part.path() / kWeights, model, get, options);
  HfFolder check(part.path(), model);  // what was written is what a reader of this model needs
  part.flush();
  part.publish();
}

}  // namespace trireme
