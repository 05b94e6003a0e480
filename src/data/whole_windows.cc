#include "data/whole_windows.h"

#include <algorithm>
#include <map>

#include "base/counted.h"
#include "base/error.h"

namespace trireme {

WholeWindows::WholeWindows(const TokenShard& shard, int64_t seq_len) : seq_len_(seq_len) {
  const std::span<const int64_t> starts = shard.document_starts();
  std::vector<Range> documents;
  for (size_t d = 0; d < starts.size(); d++) {
    const int64_t end = d + 1 < starts.size() ? starts[d + 1] : shard.tokens();
    const int64_t inputs = end - starts[d] - 1;
    if (inputs < 1) {
      left_out_++;
      continue;
    }
    cut_ += inputs > seq_len;
    cut_tokens_ += std::max<int64_t>(0, inputs - seq_len);
    documents.push_back({starts[d], starts[d] + std::min(inputs, seq_len)});
  }
  std::stable_sort(documents.begin(), documents.end(),
                   [](const Range& a, const Range& b) { return a.size() > b.size(); });
  std::vector<std::vector<Range>> windows;
  std::map<int64_t, std::vector<size_t>> room;  // free places -> windows
  for (const Range& d : documents) {
    auto fit = room.lower_bound(d.size());
    size_t window = windows.size();
    int64_t free = seq_len;
    if (fit == room.end()) {
      windows.emplace_back();
    } else {
      window = fit->second.back();
      free = fit->first;
      fit->second.pop_back();
      if (fit->second.empty()) room.erase(fit);
    }
    windows[window].push_back(d);
    if (free > d.size()) room[free - d.size()].push_back(window);
  }
  const auto before = [](const Range& a, const Range& b) { return a.begin < b.begin; };
  for (std::vector<Range>& w : windows) std::sort(w.begin(), w.end(), before);
  std::sort(windows.begin(), windows.end(),
            [&](const auto& a, const auto& b) { return before(a.front(), b.front()); });
  first_.push_back(0);
  for (const std::vector<Range>& w : windows) {
    pieces_.insert(pieces_.end(), w.begin(), w.end());
    first_.push_back(pieces_.size());
  }
}

std::span<const Range> WholeWindows::pieces(int64_t window) const {
  require(window >= 0 && window < count(), "WholeWindows: a window outside the shard");
  return std::span(pieces_).subspan(first_[size_t(window)],
                                    first_[size_t(window) + 1] - first_[size_t(window)]);
}

int64_t WholeWindows::targets(const TokenShard& shard, int64_t window) const {
  int64_t n = 0;
  for (const Range& piece : pieces(window)) n += shard.targets(piece.begin + 1, piece.end + 1);
  return n;
}

Range WholeWindows::tokens(int64_t window) const {
  return {pieces(window).front().begin, pieces(window).back().end};
}

std::string WholeWindows::note() const {
  int64_t used = 0;
  for (const Range& piece : pieces_) used += piece.size();
  std::string text = fmt::format("{} in {}, {:.1f} % full", counted(pieces_.size(), "document"),
                                 counted(count(), "sample"), 100 * double(used) / double(count() * seq_len_));
  if (cut_ > 0)
    text += fmt::format("; {} longer than data.seq_len + 1 = {} tokens cut: {} tokens are left out",
                        counted(cut_, "document"), seq_len_ + 1, cut_tokens_);
  if (left_out_ > 0) text += fmt::format("; {} of one token left out", counted(left_out_, "document"));
  return text;
}

}  // namespace trireme
