#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json.h"
#include "checkpoint/untrusted.h"

namespace trireme {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian, and so must be the host");

struct StoredType {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;
};
// In the order of the reference library's enumeration (safetensors 0.8), which is its sorting rank.
constexpr std::array<StoredType, 20> kStoredTypes = {
    {{"BOOL", 8, {}},           {"F4", 4, {}},           {"F6_E2M3", 6, {}},      {"F6_E3M2", 6, {}},
     {"U8", 8, DType::u8},      {"I8", 8, {}},           {"F8_E5M2", 8, {}},      {"F8_E4M3", 8, {}},
     {"F8_E8M0", 8, {}},        {"I16", 16, {}},         {"U16", 16, DType::u16}, {"F16", 16, DType::f16},
     {"BF16", 16, DType::bf16}, {"I32", 32, DType::i32}, {"U32", 32, {}},         {"F32", 32, DType::f32},
     {"C64", 64, {}},           {"F64", 64, DType::f64}, {"I64", 64, DType::i64}, {"U64", 64, {}}}};

// "BOOL, F4, ... or U64": the types whose tensors can be listed and skipped.
std::string known_types() {
  std::string out;
  for (size_t i = 0; i < kStoredTypes.size(); i++)
    out += fmt::format("{}{}",
                       i == 0                        ? ""
                       : i + 1 < kStoredTypes.size() ? ", "
                                                     : " or ",
                       kStoredTypes[i].name);
  return out;
}

const StoredType* stored_type(std::string_view name) {
  for (const StoredType& t : kStoredTypes)
    if (t.name == name) return &t;
  return nullptr;
}

// Walks the JSON without building it: the grammar is fixed, so anything unexpected ends the walk at once and
// a hostile header costs no more memory than the entries that it really has.
class HeaderWalk final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderWalk(std::string_view file, SafetensorsHeader& out) : file_(file), out_(out) {}

  bool start_object(size_t) override {
    if (place_ == Place::start) return go(Place::top);
    if (place_ != Place::top) unexpected("an object");
    if (key_ == "__metadata__") return go(Place::metadata);
    entry_ = {}, entry_.name = key_;
    has_type_ = has_shape_ = has_offsets_ = false;
    return go(Place::entry);
  }
  bool end_object() override {
    if (place_ == Place::top) return go(Place::end);
    if (place_ == Place::entry) finish_entry();
    return go(Place::top);
  }
  bool key(std::string& k) override {
    if (place_ == Place::top && !names_.insert(k).second)
      bad_request("{}: the name '{}' occurs twice; names must be unique", file_, printable(k));
    if (place_ == Place::metadata && out_.metadata.contains(k))
      bad_request("{}: __metadata__ has the key '{}' twice; keys must be unique", file_, printable(k));
    if (place_ == Place::entry && k != "dtype" && k != "shape" && k != "data_offsets")
      bad_request("{}: tensor '{}': unknown key '{}'; right are dtype, shape and data_offsets", file_,
                  printable(entry_.name), printable(k));
    (place_ == Place::top ? key_ : field_) = k;
    return true;
  }
  bool start_array(size_t) override {
    if (place_ != Place::entry || field_ == "dtype")
      unexpected(place_ == Place::list ? "a list of lists" : "a list");
    numbers_.clear();
    return go(Place::list);
  }
  bool end_array() override {
    field_ == "shape" ? take_shape() : take_offsets();
    return go(Place::entry);
  }
  bool number_unsigned(uint64_t n) override {
    if (place_ != Place::list) unexpected(fmt::format("the number {}", n));
    if (n > uint64_t(INT64_MAX)) refuse_number(fmt::format("{}", n));
    if (numbers_.size() == size_t(kMaxDims))
      bad_request("{}: tensor '{}': {} has more than {} numbers; right are {}", file_, printable(entry_.name),
                  field_, kMaxDims, field_ == "shape" ? "at most 4 dims" : "two, begin and end");
    numbers_.push_back(int64_t(n));
    return true;
  }
  bool number_integer(int64_t n) override { refuse_number(fmt::format("{}", n)); }
  bool number_float(double, const std::string& text) override { refuse_number(text); }
  bool string(std::string& s) override {
    if (place_ == Place::metadata) {
      out_.metadata.emplace(field_, s);
    } else if (place_ == Place::entry && field_ == "dtype") {
      take_type(s);
    } else {
      unexpected(fmt::format("the text '{}'", printable(s)));
    }
    return true;
  }
  bool null() override { unexpected("null"); }
  bool boolean(bool b) override { unexpected(b ? "true" : "false"); }
  bool binary(nlohmann::json::binary_t&) override { unexpected("binary data"); }
  bool parse_error(size_t at, const std::string&, const nlohmann::json::exception&) override {
    bad_request("{}: the header is not JSON from its byte {} on; the file is damaged or no safetensors file",
                file_, at);
  }

 private:
  enum class Place { start, top, metadata, entry, list, end };
  bool go(Place p) {
    place_ = p;
    return true;
  }

  [[noreturn]] void unexpected(const std::string& what) {
    switch (place_) {
      case Place::start:
      case Place::end:
        bad_request("{}: the header is {}; right is one object of tensors", file_, what);
      case Place::top:
        bad_request("{}: tensor '{}' is {}; right is an object of dtype, shape and data_offsets", file_,
                    printable(key_), what);
      case Place::metadata:
        bad_request("{}: __metadata__ key '{}' is {}; right are texts", file_, printable(field_), what);
      default:
        bad_request("{}: tensor '{}': {} is {}; right is {}", file_, printable(entry_.name), field_, what,
                    field_ == "dtype" ? "the name of a type" : "a list of numbers");
    }
  }
  [[noreturn]] void refuse_number(const std::string& text) {
    if (place_ != Place::list) unexpected("the number " + printable(text));
    bad_request("{}: tensor '{}': {} has the number {}; right are whole numbers from 0 to {}", file_,
                printable(entry_.name), field_, printable(text), INT64_MAX);
  }
  void once(bool& seen) {
    if (seen) bad_request("{}: tensor '{}': {} occurs twice", file_, printable(entry_.name), field_);
    seen = true;
  }
  void take_type(const std::string& s) {
    once(has_type_);
    const StoredType* t = stored_type(s);
    if (!t)
      bad_request("{}: tensor '{}': unknown dtype '{}'; right is {}", file_, printable(entry_.name),
                  printable(s), known_types());
    entry_.stored_type = s;
    entry_.dtype = t->dtype;
    item_bits_ = t->bits;
  }
  void take_shape() {
    once(has_shape_);
    entry_.shape.rank = int(numbers_.size());
    std::copy(numbers_.begin(), numbers_.end(), entry_.shape.dim.begin());
  }
  void take_offsets() {
    once(has_offsets_);
    if (numbers_.size() != 2 || numbers_[0] > numbers_[1])
      bad_request("{}: tensor '{}': data_offsets is [{}]; right is [begin, end] with begin <= end", file_,
                  printable(entry_.name), fmt::join(numbers_, ", "));
    entry_.begin = numbers_[0], entry_.end = numbers_[1];
  }
  void finish_entry() {
    const char* missing = !has_type_      ? "dtype"
                          : !has_shape_   ? "shape"
                          : !has_offsets_ ? "data_offsets"
                                          : nullptr;
    if (missing) bad_request("{}: tensor '{}' has no {}", file_, printable(entry_.name), missing);
    // Products in the order of Shape::numel(), so that none of its steps can overflow later.
    int64_t bits = 1;
    bool ok = true;
    for (int i = 0; i < entry_.shape.rank; i++)
      ok = ok && !__builtin_mul_overflow(bits, entry_.shape[i], &bits);
    ok = ok && !__builtin_mul_overflow(bits, item_bits_, &bits);
    const int64_t bytes = (bits + 7) / 8;
    if (!ok || bits > INT64_MAX - 7)
      bad_request("{}: tensor '{}': shape {} has more elements than any file can hold", file_,
                  printable(entry_.name), to_string(entry_.shape));
    if (bits % 8 != 0)
      bad_request("{}: tensor '{}': shape {} of {} ends within a byte; its bits must be a multiple of 8",
                  file_, printable(entry_.name), to_string(entry_.shape), entry_.stored_type);
    if (bytes != entry_.end - entry_.begin)
      bad_request("{}: tensor '{}': shape {} of {} takes {} bytes, but data_offsets [{}, {}] span {}", file_,
                  printable(entry_.name), to_string(entry_.shape), entry_.stored_type, bytes, entry_.begin,
                  entry_.end, entry_.end - entry_.begin);
    out_.entries.push_back(std::move(entry_));
  }

  std::string_view file_;
  SafetensorsHeader& out_;
  Place place_ = Place::start;
  std::string key_, field_;
  std::set<std::string> names_;
  SafetensorsEntry entry_;
  int64_t item_bits_ = 0;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<int64_t> numbers_;
};

// Sorts the tensors by place; they must cover the data_bytes exactly.
void check_cover(std::vector<SafetensorsEntry>& entries, int64_t data_bytes, std::string_view file) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t at = 0;
  const SafetensorsEntry* last = nullptr;
  for (const SafetensorsEntry& e : entries) {
    if (e.end > data_bytes)
      bad_request("{}: tensor '{}' ends at byte {} of the data, but the file holds {}; it is truncated", file,
                  printable(e.name), e.end, data_bytes);
    if (e.begin < at)
      bad_request("{}: tensor '{}' begins at byte {} of the data, inside '{}', which ends at {}", file,
                  printable(e.name), e.begin, printable(last->name), at);
    if (e.begin > at)
      bad_request(
          "{}: tensor '{}' begins at byte {} of the data, but the bytes from {} on belong to no tensor", file,
          printable(e.name), e.begin, at);
    at = e.end, last = &e;
  }
  if (at != data_bytes)
    bad_request("{}: the tensors take {} bytes, but {} follow the header; right is no byte more", file, at,
                data_bytes);
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  if (bytes.size() < 8)
    bad_request("{}: {} bytes long; a safetensors file begins with 8 bytes of header length", file,
                bytes.size());
  uint64_t n;
  std::memcpy(&n, bytes.data(), 8);
  if (n > uint64_t(kMaxHeaderBytes)) {
    const std::string_view head(reinterpret_cast<const char*>(bytes.data()),
                                std::min<size_t>(bytes.size(), 512));
    if (const std::string_view kind = marked_kind(head); !kind.empty())
      bad_request("{}: this is {}, not a safetensors file", file, kind);
    bad_request("{}: header length {}; right is at most {} (damaged, or no safetensors file)", file, n,
                kMaxHeaderBytes);
  }
  if (n > bytes.size() - 8)
    bad_request("{}: header length {}, but only {} bytes follow; the file is truncated", file, n,
                bytes.size() - 8);
  auto text = reinterpret_cast<const char*>(bytes.data()) + 8;
  if (n == 0 || text[0] != '{')
    bad_request("{}: the header must begin with '{{' (damaged, or no safetensors file)", file);
  SafetensorsHeader header;
  header.data_begin = 8 + int64_t(n);
  HeaderWalk walk(file, header);
  nlohmann::json::sax_parse(text, text + n, &walk);
  check_cover(header.entries, int64_t(bytes.size()) - header.data_begin, file);
  return header;
}

std::string_view safetensors_name_of(DType t) {
  return kStoredTypes[size_t(safetensors_rank_of(t))].name;
}

int safetensors_rank_of(DType t) {
  auto it = std::find_if(kStoredTypes.begin(), kStoredTypes.end(),
                         [t](const StoredType& s) { return s.dtype == t; });
  require(it != kStoredTypes.end(), "an element type without a safetensors name");
  return int(it - kStoredTypes.begin());
}

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : map_(path), header_(parse_safetensors(map_.bytes(), path.string())) {
  for (size_t i = 0; i < header_.entries.size(); i++) index_.emplace(header_.entries[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &header_.entries[it->second];
}

}  // namespace trireme
