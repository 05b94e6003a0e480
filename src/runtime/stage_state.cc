// Parameters and optimizer state of a StageRunner: how they start, and how they come and go.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "device/rope_table.h"
#include "runtime/microbatch.h"
#include "runtime/state_offload.h"

namespace trireme {
namespace {

template <class T>
void upload_rounded(Device& device, const Tensor& dst, std::span<const float> src) {
  std::vector<T> rounded(src.size());
  for (size_t i = 0; i < src.size(); i++) rounded[i] = T(src[i]);
  device.upload(dst, rounded.data());
}
void upload_f32(Device& device, const std::string& name, const Tensor& dst, std::span<const float> src) {
  require(int64_t(src.size()) == dst.numel(), "a parameter was written with another number of elements");
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
  require(int64_t(dst.size()) == src.numel(), "a parameter was read with another number of elements");
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
  // A row of the box lies in one piece; rows do where the box has all columns.
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

void StageRunner::bind_rope() {
  if (!stage_.rope) return;
  const ModelSpec& m = run_.model;
  RopeScaling s = m.rope_scaling;
  int64_t positions = std::max(m.max_positions, run_.data.seq_len), half = m.rope_dim() / 2;
  RopeAngles angles{.theta = m.rope_theta,
                    .scaling = rope_scaling_from_name(s.type),
                    .factor = s.factor,
                    .low_freq_factor = s.low_freq_factor,
                    .high_freq_factor = s.high_freq_factor,
                    .original_max_positions = s.original_max_positions,
                    .beta_fast = s.beta_fast,
                    .beta_slow = s.beta_slow};
  if (angles.scaling == RopeStretch::yarn)
    angles.amplitude = yarn_factors(s.factor, s.mscale, s.mscale_all_dim, s.attention_factor).amplitude;
  for (Tensor* t : {&stage_.rope->cos, &stage_.rope->sin}) {
    persistent_.emplace_back(*arena_, Bucket::scratch, Shape{positions, half}, DType::f32);
    *t = *persistent_.back();
  }
  if (!device_.has_data()) return;
  std::vector<float> cos(size_t(positions * half)), sin(cos.size());
  rope_table(angles, positions, m.rope_dim(), cos, sin);
  device_.upload(stage_.rope->cos, cos.data());
  device_.upload(stage_.rope->sin, sin.data());
}

// Every rank keeps the magnitudes of all layers, whatever stage it has.
void StageRunner::bind_fp8() {
  if (mode_ != RunMode::train || run_.precision.fp8 == "none") return;
  const StageRange whole{.first = 0, .last = run_.model.layers};
  const LayoutSpec& l = run_.layout;  // what is computed again by name wants inputs as they were
  const bool keeps = (l.recompute == "none" || l.recompute == "full") && l.recompute_rest.empty();
  fp8_.emplace(run_.precision, build_stage(run_.model, whole).declare(), keeps);
  if (!fp8_->delayed()) return;
  Tensor held[2];
  for (Tensor& t : held) {
    persistent_.emplace_back(*arena_, Bucket::scratch, Shape{fp8_->magnitudes()}, DType::f32);
    t = *persistent_.back();
    device_.kernels().run(ZeroArgs{.y = t}, compute_);
  }
  fp8_->bind(held[0], held[1]);
}

std::vector<StateDecl> StageRunner::state_decls() const {
  return state_decls_;
}

// Memory is touched first by ops, whose threads share the page faults; numbers are drawn a few MB at a time.
void StageRunner::init_weights(const std::function<bool(const Param&)>& given) {
  if (!device_.has_data()) return;
  device_.kernels().attach(arena_.get());
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
  weights_from_master();
}

const Unit& StageRunner::unit_of(const Param& p) const {
  auto u = std::find_if(params_.units.begin(), params_.units.end(),
                        [&](const Unit& v) { return p.offset < v.offset + v.numel; });
  require(u != params_.units.end() && p.offset >= u->offset, "a parameter of another model");
  return *u;
}

// A buffer is whole on every rank, and the first of the shard group and its replicas answers for it.
Range StageRunner::owned(const Param& p) const {
  if (p.decl.buffer) return {0, p.numel()};
  const Unit& u = unit_of(p);
  return inside(p, u, own_part(u, flat_.place_of(u)));
}
Range StageRunner::answers_for(const Param& p) const {
  if (p.decl.buffer)
    return {0, p.answers && flat_.place.shard == 0 && flat_.place.replica == 0 ? p.numel() : 0};
  if (!p.answers) return {owned(p).begin, owned(p).begin};
  const Unit& u = unit_of(p);
  return inside(p, u, own_share(u, flat_.place_of(u)));
}

Tensor StageRunner::state_tensor(const Param& p, std::string_view what) const {
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

void StageRunner::write_param(const Param& p, std::string_view what, std::span<const float> values) {
  upload_f32(device_, p.decl.name, state_tensor(p, what), values);
}

void StageRunner::read_param(const Param& p, std::string_view what, std::span<float> values) const {
  download_f32(device_, values, state_tensor(p, what));
}

// What waits outside comes in pieces, as for an update.
void StageRunner::cast_master() {
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

void StageRunner::weights_from_master() {
  device_.kernels().attach(arena_.get());
  const bool away = waits(flat_.master);
  if (away) cast_master();
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
  if (sync_) sync_->spread_weights();
  device_.sync(compute_);
}

}  // namespace trireme
