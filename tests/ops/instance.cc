#include "instance.h"

#include <cstring>
#include <limits>

#include "modes.h"

namespace trireme::harness {
namespace {

constexpr std::byte kPoison{0xff};  // NaN in every float type, -1 in every integer
constexpr int64_t kScratchGuard = 4096;
constexpr int64_t kScratchBegins = Arena::kAlign;  // where an arena may place it, and no better: a guard too

void put(std::byte* at, DType t, double v) {
  auto store = [at](auto x) { std::memcpy(at, &x, sizeof x); };
  switch (t) {
    case DType::f64:
      return store(v);
    case DType::f32:
      return store(float(v));
    case DType::bf16:
      return store(bf16(float(v)));
    case DType::i32:
      return store(int32_t(v));
    case DType::i64:
      return store(int64_t(v));
    case DType::u16:
      return store(uint16_t(v));
    case DType::u8:
      return store(uint8_t(v));
    case DType::f16:
      return store(f16(float(v)));
  }
  run_failed("the harness has no operands of type {}", name_of(t));
}

double get(const std::byte* at, DType t) {
  auto load = [at]<class X>(X) {
    X x;
    std::memcpy(&x, at, sizeof x);
    return x;
  };
  switch (t) {
    case DType::f64:
      return load(double());
    case DType::f32:
      return double(load(float()));
    case DType::bf16:
      return double(float(load(bf16())));
    case DType::i32:
      return double(load(int32_t()));
    case DType::i64:
      return double(load(int64_t()));
    case DType::u16:
      return double(load(uint16_t()));
    case DType::u8:
      return double(load(uint8_t()));
    case DType::f16:
      return double(float(load(f16())));
  }
  run_failed("the harness has no operands of type {}", name_of(t));
}

}  // namespace

int64_t Instance::slab_bytes(Case& c, const Problem& p) {
  Builder sizing(p, reinterpret_cast<std::byte*>(64));
  c.build(sizing);
  p.refuse_unread();
  return sizing.bytes();
}

Instance::Instance(const CaseEntry& entry, const Problem& problem, Device& device, int64_t scratch,
                   Draws draws)
    : case_(entry.make()),
      device_(device),
      draws_(draws),
      slab_size_(slab_bytes(*case_, problem)),
      scratch_limit_((scratch + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign),
      scratch_size_(kScratchBegins + scratch + kScratchGuard),
      slab_(device.reserve(slab_size_)),
      scratch_(device.reserve(scratch_size_)),
      builder_(problem, slab_),
      arena_(scratch_ + kScratchBegins, scratch_limit_) {
  case_->build(builder_);
  if (!device.has_data() || draws == Draws::repeated) return;
  initial_.assign(size_t(slab_size_), kPoison);
  for (size_t k = 0; k < operands().list.size(); k++) {
    Operand& o = operands().list[k];
    o.before.assign(size_t(o.tensor.numel()), std::numeric_limits<double>::quiet_NaN());
    if (o.role == Role::out) continue;
    std::byte* image = initial_.data() + (o.tensor.data - slab_);
    for_each_element(o.tensor, [&](int64_t i, int64_t offset) {
      put(image + offset, o.tensor.dtype, builder_.fills()[k](i));
      o.before[size_t(i)] = get(image + offset, o.tensor.dtype);
    });
  }
}

// The first values are drawn and uploaded, and copied on the device until the operand is full, padding
// included.
void Instance::put_repeated(const Operand& o, const Builder::Fill& fill) {
  constexpr int64_t kDrawn = 65521;  // a prime: rows of a power of two elements are not alike
  const Tensor& t = o.tensor;
  const bool floats =
      t.dtype == DType::f64 || t.dtype == DType::f32 || t.dtype == DType::bf16 || t.dtype == DType::f16;
  require(floats || t.contiguous(), "integers with padding");
  const int64_t size = size_of(t.dtype), n = o.extent() / size, drawn = floats ? std::min(n, kDrawn) : n;
  if (n == 0) return;
  std::vector<std::byte> values(size_t(drawn * size));
  for (int64_t i = 0; i < drawn; i++) put(values.data() + i * size, t.dtype, fill(i));
  auto bytes = [&](int64_t from, int64_t count) {
    return Tensor(t.data + from * size, {count * size}, DType::u8);
  };
  device_.upload(bytes(0, drawn), values.data());
  for (int64_t at = drawn; at < n; at *= 2) {
    device_.copy(bytes(at, std::min(at, n - at)), bytes(0, std::min(at, n - at)), {});
    device_.sync({});
  }
}

int64_t planned_scratch(const CaseEntry& entry, const Problem& p, std::string_view device, int threads) {
  auto meta = make_meta_of(device, threads);
  Instance plan(entry, p, *meta, int64_t(1) << 40);
  plan.launch();
  return plan.scratch_peak();
}

Instance::~Instance() {
  device_.release(slab_, slab_size_);
  device_.release(scratch_, scratch_size_);
}

void Instance::reset() {
  if (!device_.has_data()) return;
  if (draws_ == Draws::repeated) {
    for (size_t k = 0; k < operands().list.size(); k++)
      if (operands().list[k].role != Role::out) put_repeated(operands().list[k], builder_.fills()[k]);
    return;
  }
  device_.upload(slab(), initial_.data());
  scratch_left_.assign(size_t(scratch_size_), kPoison);
  device_.upload(guarded_scratch(), scratch_left_.data());
}

void Instance::launch() {
  kernels().attach(&arena_);
  case_->launch(kernels());
  kernels().attach(nullptr);
}
void Instance::finish() {
  device_.sync({});
}

void Instance::fetch() {
  left_.resize(size_t(slab_size_));
  device_.download(left_.data(), slab());
  device_.download(scratch_left_.data(), guarded_scratch());
  for (Operand& o : operands().list) {
    if (o.role == Role::in) continue;
    o.got.resize(size_t(o.tensor.numel()));
    const std::byte* image = left_.data() + (o.tensor.data - slab_);
    for_each_element(
        o.tensor, [&](int64_t i, int64_t offset) { o.got[size_t(i)] = get(image + offset, o.tensor.dtype); });
  }
}

std::string Instance::trespass() const {
  // Undo the permitted writes; whatever still differs was not permitted.
  std::vector<std::byte> image = left_;
  for (const Operand& o : const_cast<Instance*>(this)->operands().list) {
    if (o.role == Role::in) continue;
    int64_t begin = o.tensor.data - slab_, size = size_of(o.tensor.dtype);
    for_each_element(o.tensor, [&](int64_t, int64_t offset) {
      std::memcpy(image.data() + begin + offset, initial_.data() + begin + offset, size_t(size));
    });
  }
  for (size_t at = 0; at < image.size(); at++) {
    if (image[at] == initial_[at]) continue;
    for (const Operand& o : const_cast<Instance*>(this)->operands().list)
      if (int64_t(at) < o.tensor.data - slab_ + o.tensor.bytes())
        return fmt::format("wrote byte {} of the slab, near operand '{}', where it may not write", at,
                           o.name);
    return fmt::format("wrote byte {} of the slab, behind the last operand", at);
  }
  int64_t asked = scratch_peak();
  for (int64_t at = -kScratchBegins; at < scratch_size_ - kScratchBegins; at++) {
    if (at == 0) at = asked;
    if (scratch_left_[size_t(kScratchBegins + at)] != kPoison)
      return fmt::format("wrote byte {} of its scratch, of which it had asked for {}", at, asked);
  }
  return "";
}

std::vector<std::byte> Instance::bits(const Operand& o) const {
  int64_t size = size_of(o.tensor.dtype);
  std::vector<std::byte> out(size_t(o.tensor.bytes()));
  const std::byte* image = left_.data() + (o.tensor.data - slab_);
  for_each_element(o.tensor, [&](int64_t i, int64_t offset) {
    std::memcpy(out.data() + i * size, image + offset, size_t(size));
  });
  return out;
}

}  // namespace trireme::harness
