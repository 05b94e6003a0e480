#include "runtime/stage_memory.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace trireme {
namespace {

template <class T>
void upload_rounded(Device& device, const Tensor& dst, std::span<const float> src) {
  std::vector<T> rounded(src.size());
  for (size_t i = 0; i < src.size(); i++) rounded[i] = T(src[i]);
  device.upload(dst, rounded.data());
}
void upload_f32(Device& device, const std::string& name, const Tensor& dst, std::span<const float> src) {
  require(int64_t(src.size()) == dst.numel(), "a parameter was written with a different number of elements");
  if (dst.dtype == DType::f32) {
    device.upload(dst, src.data());
  } else if (dst.dtype == DType::bf16) {
    upload_rounded<bf16>(device, dst, src);
  } else {
    for (float f : src)
      if (std::isfinite(f) && !std::isfinite(float(f16(f))))
        bad_request(
            "parameter {} holds {}, and f16 holds at most 65504; give precision.compute = \"bf16\" or "
            "\"f32\"",
            name, f);
    upload_rounded<f16>(device, dst, src);
  }
}

template <class T>
void download_widened(Device& device, std::span<float> dst, const Tensor& src) {
  std::vector<T> raw(dst.size());
  device.download(raw.data(), src);
  for (size_t i = 0; i < dst.size(); i++) dst[i] = float(raw[i]);
}

void download_f32(Device& device, std::span<float> dst, const Tensor& src) {
  require(int64_t(dst.size()) == src.numel(), "a parameter was read with a different number of elements");
  if (src.dtype == DType::f32) {
    device.download(dst.data(), src);
    return;
  }
  src.dtype == DType::bf16 ? download_widened<bf16>(device, dst, src)
                           : download_widened<f16>(device, dst, src);
}

// Normal numbers of the elements [first, first + out.size()) of a tensor: pairs share a counter.
void draw_run(uint64_t key, float std, int64_t first, std::span<float> out) {
  if (first % 2 && !out.empty()) {
    out[0] = float(normal_pair(key, uint64_t(first) / 2)[1] * std);
    first++, out = out.subspan(1);
  }
  const int64_t n = int64_t(out.size());
#pragma omp parallel for schedule(static) if (n > 1024)
  for (int64_t i = 0; i < n; i += 2) {
    const auto pair = normal_pair(key, uint64_t(first + i) / 2);
    out[size_t(i)] = float(pair[0] * std);
    if (i + 1 < n) out[size_t(i + 1)] = float(pair[1] * std);
  }
}

// Elements [first, first + out.size()) of the box count by their global row-major index, so every layout
// draws the same numbers. By the device's team of threads.
void draw(const Param& p, uint64_t seed, int64_t first, std::span<float> out) {
  const Init& init = p.decl.init;
  if (init.kind != Init::Kind::normal) {
    std::fill(out.begin(), out.end(), init.kind == Init::Kind::ones ? 1.0f : 0.0f);
    return;
  }
  const uint64_t key = rng_key(seed, 0, p.decl.name);
  const Shape &box = p.box.extent, &global = p.decl.global;
  require(box.rank == 1 || box.rank == 2, "weights that are drawn have one or two dims");
  // A row of the box is one piece; rows are one piece together if the box has all columns.
  const bool pieces = box.rank == 2 && box[1] < global[1];
  const int64_t row = pieces ? box[1] : box.numel(), stride = pieces ? global[1] : 0;
  const int64_t corner = p.box.offset[0] * (box.rank == 2 ? global[1] : 1) + (pieces ? p.box.offset[1] : 0);
  for (int64_t at = first, end = first + int64_t(out.size()); at < end;) {
    const int64_t n = std::min(end, (at / row + 1) * row) - at;
    draw_run(key, init.std, corner + at / row * stride + at % row,
             out.subspan(size_t(at - first), size_t(n)));
    at += n;
  }
}

}  // namespace

OffloadTo offload_to(const RunSpec& r) {
  return {.folder = r.layout.offload_dir.empty() ? r.train.dir : r.layout.offload_dir,
          .host = r.layout.offload_to == "host"};
}

StageMemory::StageMemory(const RunSpec& run, bool trains, Device& device, const Sharing& sharing,
                         int64_t arena_bytes)
    : run_(run),
      trains_(trains),
      device_(device),
      sharing_(sharing),
      compute_(device.stream("compute")),
      dtype_(dtype_from_name(run.precision.compute)),
      grad_dtype_(dtype_from_name(run.precision.grads)),
      memory_(device.reserve(arena_bytes)),
      bytes_(arena_bytes),
      arena_(memory_, arena_bytes) {}

StageMemory::~StageMemory() {
  state_offload_.reset();
  persistent_.clear();
  device_.kernels().detach(&arena_);
  device_.release(memory_, bytes_);
}

Tensor StageMemory::hold(Bucket b, const Shape& shape, DType t) {
  persistent_.emplace_back(arena_, b, shape, t);
  return *persistent_.back();
}

void StageMemory::hold_flat(std::vector<StateDecl> state) {
  state_decls_ = std::move(state);
  const auto flat = [&](Bucket b, int64_t n, DType t) { return hold(b, Shape{n}, t); };
  const int64_t all = params_.numel, part = params_.part;
  const int64_t trained = params_.trained, trained_part = params_.trained_part;
  flat_.place = sharing_.place;
  flat_.experts = sharing_.expert_place;
  flat_.weights = flat(Bucket::weights, sharing_.zero == 3 ? part : all, dtype_);
  flat_.master = flat_.weights;
  if (!trains_) return;
  flat_.grads = flat(Bucket::grads, sharing_.zero >= 2 ? trained_part : trained, grad_dtype_);
  if (run_.layout.offloads_state()) return hold_state();
  if (dtype_ != DType::f32) flat_.master = flat(Bucket::optimizer, trained_part, DType::f32);
  for (const StateDecl& s : state_decls_)
    flat_.state.push_back(flat(Bucket::optimizer,
                               s.of_hidden ? trained_part : others_numel(params_, sharing_.place.shards),
                               s.dtype));
}

void StageMemory::bind() {
  nonfinite_count_ = hold(Bucket::scratch, Shape{1}, DType::i64);
  for (Param& p : params_.buffers)
    p.weight = hold(Bucket::weights, Shape{p.numel()}, DType::f32).view(p.box.extent);
  bind_views();
  zero_padding();
}

// Outside: by state_decls_, then the master copy where weights are none themselves.
void StageMemory::hold_state() {
  const bool master = dtype_ != DType::f32;
  const size_t kinds = state_decls_.size() + master;
  state_offload_ = std::make_unique<StateOffload>(offload_to(run_), device_, arena_, params_, flat_, kinds,
                                                  int64_t(run_.layout.offload_mb * 1e6));
  for (size_t i = 0; i < state_decls_.size(); i++) {
    require(state_decls_[i].of_hidden && state_decls_[i].dtype == DType::f32,
            "state that waits in a file is f32, of all parameters");
    flat_.state.push_back(state_offload_->home(i));
  }
  if (master) flat_.master = state_offload_->home(kinds - 1);
}

// Of flat_'s buffers: is it memory that ops do not reach?
bool StageMemory::waits(const Tensor& state) const {
  return state_offload_ && state.data != flat_.weights.data && state.data != flat_.grads.data;
}

// Sets views into whole buffers. GradSync sets those of divided units.
void StageMemory::bind_views() {
  for (const Unit& u : params_.units) {
    const bool divided = flat_.place_of(u).shards > 1;
    auto at = [&](const Param& p, const Tensor& buffer) {
      return p.view(buffer, flat_.whole(buffer, params_) ? p.offset : p.offset - u.offset + u.part_offset);
    };
    for (size_t i = u.first; i < u.last; i++) {
      Param& p = params_.params[i];
      if (sharing_.zero < 3 || !divided) p.weight = at(p, flat_.weights);
      if (trains_ && !u.frozen && (sharing_.zero < 2 || !divided)) p.grad = at(p, flat_.grads);
    }
  }
}

// Sums over padding are zero, and gathered units are equal in every run.
void StageMemory::zero_padding() {
  std::vector<Tensor> buffers = {flat_.weights, flat_.master};
  if (trains_) buffers.push_back(flat_.grads);
  for (size_t i = 0; i < flat_.state.size(); i++)
    if (state_decls_[i].of_hidden) buffers.push_back(flat_.state[i]);
  for (const Tensor& t : buffers) {
    if (waits(t)) continue;  // zero as it was taken
    for (const Unit& u : params_.units) {
      if (!flat_.has(t, u)) continue;
      const Range own = own_part(u, flat_.place_of(u));
      const int64_t begin = flat_.whole(t, params_) ? 0 : own.begin,
                    end = flat_.whole(t, params_) ? u.padded : own.end;
      const int64_t first = std::max(begin, u.numel);
      if (first >= end) continue;
      const Tensor unit =
          flat_.whole(t, params_) ? t.narrow(0, u.offset, u.padded) : flat_.own(t, params_, u);
      device_.kernels().run(ZeroArgs{.y = unit.narrow(0, first - begin, end - first)}, compute_);
    }
  }
}

// Memory is touched first by ops, whose threads share the page faults; numbers are drawn a few MB at a time.
void StageMemory::init_weights(const std::function<bool(const Param&)>& given) {
  device_.kernels().attach(&arena_);
  if (state_offload_) state_offload_->zero();
  if (!waits(flat_.master)) device_.kernels().run(ZeroArgs{.y = flat_.master}, compute_);
  for (const Tensor& s : flat_.state)
    if (!waits(s)) device_.kernels().run(ZeroArgs{.y = s}, compute_);
  constexpr int64_t kChunk = 1 << 20;
  std::vector<float> host;
  for (const Param* held : params_.held()) {
    const Param& p = *held;
    if (given && given(p)) continue;
    const Range own = owned(p);
    const Tensor master = state_tensor(p, "");
    for (int64_t first = own.begin; first < own.end;) {
      const int64_t end = std::min(first + kChunk, own.end);
      host.resize(size_t(end - first));
      draw(p, uint64_t(run_.train.seed), first, host);
      upload_f32(device_, p.decl.name, master.narrow(0, first - own.begin, end - first), host);
      first = end;
    }
  }
}

const Unit& StageMemory::unit_of(const Param& p) const {
  auto u = std::find_if(params_.units.begin(), params_.units.end(),
                        [&](const Unit& v) { return p.offset < v.offset + v.numel; });
  require(u != params_.units.end() && p.offset >= u->offset, "a parameter of another model");
  return *u;
}

// A buffer is whole on every rank, and the first of the shard group and its replicas answers for it.
Range StageMemory::owned(const Param& p) const {
  if (p.decl.buffer) return {0, p.numel()};
  const Unit& u = unit_of(p);
  return inside(p, u, own_part(u, flat_.place_of(u)));
}
Range StageMemory::answers_for(const Param& p) const {
  if (p.decl.buffer)
    return {0, p.answers && flat_.place.shard == 0 && flat_.place.replica == 0 ? p.numel() : 0};
  if (!p.answers) return {owned(p).begin, owned(p).begin};
  const Unit& u = unit_of(p);
  return inside(p, u, own_share(u, flat_.place_of(u)));
}

Tensor StageMemory::state_tensor(const Param& p, std::string_view what) const {
  if (p.decl.buffer) {
    require(what.empty(), "a buffer has no optimizer state");
    return p.weight.view({p.numel()});
  }
  const Unit& u = unit_of(p);
  const Range own = owned(p);
  const int64_t begin = std::max<int64_t>(0, p.offset - u.offset - own_part(u, flat_.place_of(u)).begin);
  auto part = [&](const Tensor& buffer) {
    return own.size() == 0 ? Tensor(nullptr, Shape{0}, buffer.dtype)
                           : flat_.own(buffer, params_, u).narrow(0, begin, own.size());
  };
  if (what.empty()) return part(p.decl.frozen ? flat_.weights : flat_.master);
  for (size_t i = 0; i < state_decls_.size(); i++) {
    if (state_decls_[i].name != what || !state_decls_[i].has(p.decl)) continue;
    if (state_decls_[i].of_hidden) return part(flat_.state[i]);
    const Range r = others_range(params_, u, flat_.place, size_t(&p - params_.params.data()));
    return flat_.state[i].narrow(0, r.begin, r.size());
  }
  run_failed("parameter {} has no state '{}'", p.decl.name, what);
}

void StageMemory::write_param(const Param& p, std::string_view what, std::span<const float> values) {
  upload_f32(device_, p.decl.name, state_tensor(p, what), values);
}

void StageMemory::read_param(const Param& p, std::string_view what, std::span<float> values) const {
  download_f32(device_, values, state_tensor(p, what));
}

// State outside comes in pieces, as for an update.
void StageMemory::cast_waiting_masters() {
  for (size_t u = 0; u < params_.units.size(); u++)
    while (const auto piece = state_offload_->next(u)) {
      const Tensor own = flat_.own(flat_.weights, params_, params_.units[u]);
      device_.kernels().run(
          CastArgs{.src = piece->kinds.back(), .dst = own.narrow(0, piece->own.begin, piece->own.size())},
          compute_);
      state_offload_->passed();
    }
  state_offload_->settle();
}

void StageMemory::cast_masters() {
  device_.kernels().attach(&arena_);
  const bool away = waits(flat_.master);
  if (away) cast_waiting_masters();
  const bool copy = !away && flat_.weights.data != flat_.master.data;
  const bool divided = params_.part < params_.numel;
  if (copy && !divided)
    device_.kernels().run(CastArgs{.src = flat_.master, .dst = flat_.weights.narrow(0, 0, params_.trained)},
                          compute_);
  for (const Unit& u : params_.units)
    if (copy && divided && u.numel > 0 && !u.frozen)
      device_.kernels().run(
          CastArgs{.src = flat_.own(flat_.master, params_, u), .dst = flat_.own(flat_.weights, params_, u)},
          compute_);
}

}  // namespace trireme
