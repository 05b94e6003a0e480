#include "model/fp8.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "spec/name_patterns.h"

namespace trireme {
namespace {

// The edge of a block (DeepSeek-V3, 2412.19437, section 3.3.2): activations and gradients 1 x 128 along what
// is summed, weights 128 x 128, so that one scale serves both of their products.
constexpr int64_t kFp8Edge = 128;

Fp8Recipe recipe_from(const std::string& name) {
  if (name == "delayed") return Fp8Recipe::delayed;
  if (name == "current") return Fp8Recipe::current;
  require(name == "block", "a recipe that is none");
  return Fp8Recipe::block;
}

// The matrices of each linear layer, by the layer's name, without ".weight".
using Matrices = std::map<std::string, std::vector<std::string>, std::less<>>;

Matrices matrices_of(std::span<const std::vector<ParamDecl>> decls) {
  constexpr std::string_view kWeight = ".weight";
  Matrices out;
  for (const std::vector<ParamDecl>& layer : decls)
    for (const ParamDecl& d : layer)
      if (!d.linear.empty()) out[d.linear].push_back(d.name.substr(0, d.name.size() - kWeight.size()));
  return out;
}

void refuse_idle_patterns(const Texts& patterns, const Matrices& all) {
  for (const std::string& p : patterns) {
    const std::string_view bare = bare_pattern(p);
    const bool names = std::any_of(all.begin(), all.end(), [&](const auto& layer) {
      return std::any_of(layer.second.begin(), layer.second.end(),
                         [&](const std::string& m) { return matches(bare, m); });
    });
    if (!names)
      bad_request(
          "precision.fp8_layers: \"{}\" names no linear layer of the model; right are patterns of names such "
          "as "
          "\"{}\", \"blocks.*\" or \"!blocks.0.*\" (embeddings, head, norms, routers and experts have none)",
          p, all.empty() ? "*" : all.begin()->second.front());
  }
}

}  // namespace

Fp8Layers::Fp8Layers(const PrecisionSpec& p, std::span<const std::vector<ParamDecl>> decls, bool keeps_inputs)
    : recipe_(recipe_from(p.fp8)),
      keeps_inputs_(keeps_inputs),
      margin_(int(p.fp8_margin)),
      length_(size_t(p.fp8_history)) {
  const Matrices all = matrices_of(decls);
  refuse_idle_patterns(p.fp8_layers, all);
  for (const auto& [linear, matrices] : all) {
    const auto in = [&](const std::string& m) { return chosen(p.fp8_layers, m); };
    const auto one = std::find_if(matrices.begin(), matrices.end(), in);
    const auto other = std::find_if_not(matrices.begin(), matrices.end(), in);
    if (one == matrices.end()) continue;
    if (other != matrices.end())
      bad_request(
          "precision.fp8_layers: {} is chosen and {} is not, and one product computes both; choose both or "
          "neither",
          *one, *other);
    place_.emplace(linear, 3 * int64_t(place_.size()));
    histories_.emplace(linear, Fp8History{});
  }
  if (place_.empty())
    bad_request(
        "precision.fp8_layers chooses no layer; right are patterns that do, such as \"*\", or precision.fp8 "
        "= "
        "\"none\"");
}

Fp8View Fp8Layers::form(Fp8Operand which, bool along_rows) const {
  Fp8View v;
  const bool block = recipe_ == Fp8Recipe::block;
  if (which == Fp8Operand::dy && !block) v.format = Fp8Format::e5m2;
  if (block && which == Fp8Operand::w) v.blocks = {kFp8Edge, kFp8Edge};
  if (block && which != Fp8Operand::w)
    v.blocks = along_rows ? Fp8Blocks{kFp8Edge, 1} : Fp8Blocks{1, kFp8Edge};
  return v;
}

Fp8Codes Fp8Layers::quantise(Ctx& ctx, std::string_view linear, Fp8Operand which, const Tensor& t,
                             bool along_rows) const {
  Fp8Codes q;
  q.view = form(which, along_rows);
  q.codes = ctx.activation(t.shape, DType::u8);
  q.scale = ctx.activation(q.view.blocks.scales(t.shape[0], t.shape[1]), DType::f32);
  q.view.codes = *q.codes, q.view.scale = *q.scale;
  ctx.k.run(QuantiseArgs{.x = t,
                         .codes = *q.codes,
                         .scale = *q.scale,
                         .amax = delayed() ? at(amax_, linear, which) : Tensor(),
                         .seen = delayed() ? at(seen_, linear, which) : Tensor(),
                         .format = q.view.format,
                         .blocks = q.view.blocks,
                         .margin = margin_},
            ctx.compute);
  return q;
}

Tensor Fp8Layers::at(const Tensor& all, std::string_view linear, Fp8Operand which) const {
  return all.narrow(0, place_.find(linear)->second + int64_t(which), 1);
}

void Fp8Layers::bind(const Tensor& amax, const Tensor& seen) {
  amax_ = amax, seen_ = seen;
}

void Fp8Layers::start_step(Kernels& k, Stream s) const {
  if (delayed()) k.run(ZeroArgs{.y = seen_}, s);
}

void Fp8Layers::upload_largest(Device& device) {
  std::vector<float> largest(3 * layers());
  for (const auto& [linear, history] : histories_)
    for (size_t i = 0; i < history.size(); i++)
      for (float m : history[i]) {
        float& most = largest[size_t(place_.find(linear)->second) + i];
        most = std::max(most, m);
      }
  device.upload(amax_, largest.data());
}

void Fp8Layers::end_step(Device& device, Communicator* all) {
  if (!delayed() || !device.has_data()) return;
  std::vector<float> seen(3 * layers());
  device.download(seen.data(), seen_);
  if (all) all->all_reduce({.buf = Tensor(seen.data(), {magnitudes()}, DType::f32), .op = Reduce::max}, {});
  for (auto& [linear, history] : histories_)
    for (size_t i = 0; i < history.size(); i++) {
      std::vector<float>& h = history[i];
      h.insert(h.begin(), seen[size_t(place_.find(linear)->second) + i]);
      h.resize(std::min(h.size(), length_));
    }
  upload_largest(device);
}

bool Fp8Layers::restore(Device& device, const Fp8Histories& saved) {
  if (saved.size() != histories_.size()) return false;
  for (const auto& [linear, history] : saved) {
    if (!has(linear)) return false;
    for (const std::vector<float>& h : history)
      if (h.size() > length_ ||
          std::any_of(h.begin(), h.end(), [](float m) { return !std::isfinite(m) || m < 0; }))
        return false;
  }
  histories_ = saved;
  if (device.has_data()) upload_largest(device);
  return true;
}

void multiply(Ctx& ctx, const Fp8View& a, const Fp8View& b, const Tensor& c, const Fp8Product& p) {
  ctx.k.run(Fp8MatmulArgs{.a = a.codes,
                          .scale_a = a.scale,
                          .b = b.codes,
                          .scale_b = b.scale,
                          .c = c,
                          .format_a = a.format,
                          .format_b = b.format,
                          .blocks_a = a.blocks,
                          .blocks_b = b.blocks,
                          .trans_a = p.trans_a,
                          .trans_b = p.trans_b,
                          .bias = p.bias,
                          .residual = p.residual,
                          .accumulate = p.accumulate},
            ctx.compute);
}

}  // namespace trireme
