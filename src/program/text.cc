#include <fmt/format.h>

#include <array>

#include "base/progress.h"
#include "program/program_bytes.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, kOpKinds> kNames = {
    "forward", "again",   "input",  "weight", "load",    "drop",   "left",   "losses", "fetch",
    "clear",   "unload",  "gather", "arrive", "release", "open",   "sum",    "reduce", "retire",
    "post",    "receive", "send",   "free",   "norm",    "update", "spread", "settle"};

// booked: PlacedCalls::booked; empty: no bytes are shown.
std::string lines_of(const Program& p, std::span<const int64_t> booked) {
  std::string s;
  const auto list = [&](std::string_view title, int32_t begin, int32_t end) {
    if (begin < end) s += fmt::format("{}\n", title);
    for (int32_t i = begin; i < end; i++) {
      s += fmt::format("{:>8} ", i);
      const auto after = size_t(i) + 1;
      if (!booked.empty())
        s += fmt::format("{:>9}  ", after < booked.size() ? human_bytes(booked[after]) : "");
      s += to_text(p, p.ops[size_t(i)]) + "\n";
    }
  };
  const auto name = [](const Action& a) { return to_text(Action{a.kind, a.stage, a.mb}); };
  for (size_t i = 0; i < p.actions.size(); i++) {
    const ActionOps& a = p.actions[i];
    if (a.action.kind == Act::Step) continue;
    const std::string other =
        a.interleaved > 0 ? " and " + name(p.actions[i + size_t(a.interleaved)].action) : "";
    list(name(a.action) + other, a.begin, a.end);
  }
  list("end of the passes", p.frees, p.sums);
  list("Step", p.sums, int32_t(p.ops.size()));
  return s;
}

}  // namespace

std::string_view name_of(OpKind k) {
  return kNames[size_t(k)];
}

std::string to_text(const Program& p, const Op& op) {
  std::string s(name_of(op.kind));
  const auto units = [&] {
    return op.last > op.unit + 1
               ? fmt::format("{} to {}", p.units[size_t(op.unit)], p.units[size_t(op.last) - 1])
               : p.units[size_t(op.unit)];
  };
  if (op.unit >= 0)
    s += " " + units();
  else if (op.layer >= 0)
    s += " " + p.layers[size_t(op.layer)];
  if (op.peer >= 0)
    s += fmt::format(" {} {} {}", op.back ? "gradient" : "activations",
                     op.kind == OpKind::send || op.kind == OpKind::free ? "to" : "from", op.peer);
  if (op.adds) s += " adding";
  if (op.by_turns > 0) s += fmt::format(" by turns with the next {}", op.by_turns);
  if (op.after >= 0) s += fmt::format(" after {}", op.after);
  return s;
}

std::string to_text(const Program& p) {
  return lines_of(p, {});
}

std::string to_text(const Program& p, const PlacedCalls& listed) {
  return lines_of(p, listed.booked);
}

}  // namespace trireme
