#include "comm/tcp/answer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "device/cpu/sum_pieces.h"

namespace trireme::tcp {
namespace {

using Bytes = std::vector<std::byte>;

// The same verdict for every rank: each is held against the first.
void hold_together(const std::vector<Call>& parts, std::string_view group, std::span<const int> ranks) {
  for (size_t r = 1; r < parts.size(); r++) {
    const CallHead &a = parts[0].head, &b = parts[r].head;
    const bool counts_differ = a.numel != b.numel && a.kind != Collective::all_to_all;
    if (a.kind != b.kind || a.dtype != b.dtype || counts_differ)
      run_failed("group {}: rank {} calls {} of {} {}, rank {} {} of {} {}; they must be equal", group,
                 ranks[0], name_of(a.kind), a.numel, name_of(a.dtype), ranks[r], name_of(b.kind), b.numel,
                 name_of(b.dtype));
    if (a.root != b.root || a.op != b.op)
      run_failed("group {}: rank {} calls {} with another root or reduction than rank {}", group, ranks[0],
                 name_of(a.kind), ranks[r]);
  }
}

Bytes reduced(const std::vector<Call>& parts) {
  const CallHead& h = parts[0].head;
  Bytes out(parts[0].data.size());
  std::byte* const to = out.data();
  std::vector<const std::byte*> from;
  for (const Call& c : parts) from.push_back(c.data.data());
  if (!out.empty())
    (h.op == Reduce::max ? cpu::max_pieces : cpu::sum_pieces)({&to, 1}, from, h.numel, h.dtype);
  return out;
}

Bytes joined(const std::vector<Call>& parts) {
  Bytes out;
  for (const Call& c : parts) out.insert(out.end(), c.data.begin(), c.data.end());
  return out;
}

// Rows for place r stand behind those for lower places in every part.
Bytes rows_for(size_t r, const std::vector<Call>& parts, std::string_view group, std::span<const int> ranks) {
  Bytes out;
  for (size_t from = 0; from < parts.size(); from++) {
    const Call& c = parts[from];
    const int64_t rows = c.send_rows[r], expected = parts[r].recv_rows[from];
    if (rows != expected || (rows > 0 && c.head.cols != parts[r].head.recv_cols))
      run_failed("all_to_all of group {}: rank {} sends {} rows of {} to rank {}, which expects {} of {}",
                 group, ranks[from], rows, c.head.cols, ranks[r], expected, parts[r].head.recv_cols);
    int64_t before = 0;
    for (size_t i = 0; i < r; i++) before += c.send_rows[i];
    const int64_t row = c.head.cols * size_of(c.head.dtype);
    const auto mine = c.data.subspan(size_t(before * row), size_t(rows * row));
    out.insert(out.end(), mine.begin(), mine.end());
  }
  return out;
}

}  // namespace

std::vector<Bytes> answer(std::vector<Call>& parts, std::string_view group, std::span<const int> ranks) {
  hold_together(parts, group, ranks);
  std::vector<Bytes> out(parts.size());
  const CallHead& h = parts[0].head;
  switch (h.kind) {
    case Collective::all_reduce:
      out.assign(parts.size(), reduced(parts));
      break;
    case Collective::reduce:
      out[size_t(h.root)] = reduced(parts);
      break;
    case Collective::reduce_scatter: {
      const Bytes all = reduced(parts);
      const size_t piece = all.size() / parts.size();
      for (size_t r = 0; r < parts.size(); r++)
        out[r].assign(all.begin() + std::ptrdiff_t(r * piece), all.begin() + std::ptrdiff_t((r + 1) * piece));
      break;
    }
    case Collective::all_gather:
      out.assign(parts.size(), joined(parts));
      break;
    case Collective::broadcast: {
      const auto& data = parts[size_t(h.root)].data;
      out.assign(parts.size(), Bytes(data.begin(), data.end()));
      break;
    }
    case Collective::all_to_all:
      for (size_t r = 0; r < parts.size(); r++) out[r] = rows_for(r, parts, group, ranks);
      break;
    default:
      break;  // a barrier is the meeting itself
  }
  return out;
}

}  // namespace trireme::tcp
