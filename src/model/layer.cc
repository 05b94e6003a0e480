#include "model/layer.h"

#include <algorithm>

namespace trireme {

const Saved::Entry* Saved::find(const void* layer, Kept name) const {
  for (const Entry& e : entries_)
    if (e.layer == layer && e.name == name) return &e;
  return nullptr;
}
void Saved::keep(const void* layer, Kept name, Owned t) {
  require(find(layer, name) == nullptr, "a saved tensor was kept twice");
  Tensor view = *t;
  entries_.push_back({.layer = layer, .name = name, .owned = std::move(t), .view = view});
}
void Saved::borrow(const void* layer, Kept name, const Tensor& t) {
  require(find(layer, name) == nullptr, "a saved tensor was kept twice");
  entries_.push_back({.layer = layer, .name = name, .owned = {}, .view = t});
}
void Saved::let_go(const void* layer, Kept name) {
  for (Entry& e : entries_) {
    if (e.layer != layer || e.name != name || !e.owned) continue;
    const std::byte *begin = e.view.data, *end = begin + e.view.bytes();
    for (Entry& v : entries_)
      if (!v.owned && !v.gone && v.view.data >= begin && v.view.data < end)
        v.gone = true, v.of_layer = layer, v.of_name = name, v.at = v.view.data - begin;
    e.owned.reset();
    e.gone = true;
  }
}
bool Saved::gone(const void* layer, Kept name) const {
  const Entry* e = find(layer, name);
  return e && e->gone;
}
void Saved::restore(const void* layer, Kept name, Owned t) {
  for (Entry& e : entries_) {
    if (!e.gone) continue;
    if (e.of_layer == layer && e.of_name == name)
      e.view.data = t->data + e.at, e.gone = false, e.of_layer = nullptr;
    else if (!e.of_layer && e.layer == layer && e.name == name)
      e.view = *t, e.gone = false;
  }
  for (Entry& e : entries_)
    if (e.layer == layer && e.name == name) e.owned = std::move(t);
}
Tensor Saved::get(const void* layer, Kept name) const {
  const Entry* e = find(layer, name);
  require(e != nullptr && !e->gone,
          "a saved tensor is missing: backward before forward, or after it was dropped");
  return e->view;
}
bool Saved::has(const void* layer, Kept name) const {
  return find(layer, name) != nullptr;
}
void Saved::drop(const void* layer, Kept name) {
  std::erase_if(entries_, [&](const Entry& e) { return e.layer == layer && e.name == name; });
}
void Saved::drop_all(const void* layer) {
  std::erase_if(entries_, [&](const Entry& e) { return e.layer == layer; });
}

void add_gradient(Ctx& ctx, Param& p, const Tensor& contribution) {
  Tensor grad(p.grad.data, contribution.shape, p.grad.dtype);
  if (p.start_grad())
    ctx.k.run(AddArgs{.a = grad, .b = contribution, .y = grad}, ctx.compute);
  else
    ctx.k.run(CastArgs{.src = contribution, .dst = grad}, ctx.compute);
}

}  // namespace trireme
