// Reading a checkpoint: any part of any tensor, from whatever parts it was stored in.
//
// A checkpoint is a folder, `<run>/checkpoints/step-00000200/`, of safetensors files and manifest.json (last
// to be written). Each entry of a file is a part of a global tensor (parts.h): entry "x" is the whole tensor
// x, or the file's metadata has, under the entry's name,
//   {"name": "x", "global": [..], "offset": [..], "extent": [..], "range": [begin, end]}
// Optimizer state is named after its parameter: "x/master" (f32; in f32 runs the weight itself), "x/exp_avg",
// "x/exp_avg_sq". Weights in the compute type are not stored: read "x/master" into a bf16 tensor.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/parts.h"
#include "checkpoint/safetensors.h"

namespace trireme {

// How far open() looks. Damage inside a tensor shows only in the hash, which costs reading every byte.
enum class Verify { hashes, sizes };

class Checkpoint {
 public:
  // One Error (request) naming the file and what is wrong unless the checkpoint is complete.
  static Checkpoint open(const fs::path& folder, Verify = Verify::hashes);

  // Compares the hashes of part `part` of `parts` of the files, dealt in turn. bad_request naming a file that
  // differs. Ranks that call it with their own part read each file once in all.
  void verify_part(int part, int parts) const;

  const fs::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  struct Stored {
    Shape global;
    DType dtype = DType::f32;
    bool operator==(const Stored&) const = default;
  };
  const Stored* find(std::string_view name) const;  // null when absent
  std::vector<std::string> names() const;           // sorted

  // Fills dst (host memory, contiguous, range.size() elements) with elements `range` of `box`, converting
  // between f32, bf16 and f16 where the stored type is another. Elements that no file holds are an Error
  // naming them.
  void read(std::string_view name, const Slice& box, const Range& range, const Tensor& dst) const;
  // The same, and the stored tensor must have wanted.global's shape.
  void read(const NamedTensor& wanted) const;

 private:
  struct Piece {
    size_t file;
    const SafetensorsEntry* entry;  // stable: the vector inside a SafetensorsFile never changes
    Part part;
  };
  struct Pieces {
    Stored stored;
    std::vector<Piece> pieces;
  };
  void add_pieces_of(size_t file);
  const Pieces& pieces_of(std::string_view name) const;

  fs::path folder_;
  Manifest manifest_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Pieces, std::less<>> tensors_;
};

// The metadata value of a stored part, and back. parse: `where` names file and entry in messages.
std::string part_to_json(const std::string& name, const Shape& global, const Part&);
struct StoredPart {
  std::string name;
  Shape global;
  Part part;
};
StoredPart part_from_json(std::string_view text, std::string_view where);

}  // namespace trireme
