#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, 13> kActionNames = {
    "F", "B", "I", "W", "R", "SendF", "RecvF", "SendB", "RecvB", "Unshard", "Reshard", "ReduceGrad", "Step"};

constexpr std::string_view kCopies = "copies";  // begins the line that says on how many ranks each stage is

// Takes a number from 0 to `most` off the front; nothing if there is none.
std::optional<int> take_number(std::string_view& s, int most) {
  int n = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
  if (error != std::errc() || n < 0 || n > most || s[0] == '-') return std::nullopt;
  s.remove_prefix(size_t(end - s.data()));
  return n;
}

[[noreturn]] void wrong_token(int line, std::string_view token, std::string_view why) {
  bad_request(
      "schedule line {}: \"{}\" {}; right is stage, kind and microbatch as 0F3 (F B I W R SendF RecvF SendB "
      "RecvB), or stage and kind as 0Step (Unshard Reshard ReduceGrad Step), numbers up to {}",
      line, printable(token), why, std::numeric_limits<int16_t>::max());
}

constexpr int kMostNumber = std::numeric_limits<int16_t>::max();  // of a stage, a microbatch

Action parse_action(int line, std::string_view token) {
  std::string_view rest = token;
  Action a;
  const std::optional<int> stage = take_number(rest, kMostNumber);
  if (!stage) wrong_token(line, token, "does not begin with a stage number");
  const size_t letters = std::min(rest.find_first_of("0123456789-@"), rest.size());
  const auto* const kind = std::find(kActionNames.begin(), kActionNames.end(), rest.substr(0, letters));
  if (kind == kActionNames.end()) wrong_token(line, token, "names no kind of action");
  rest.remove_prefix(letters);
  a.kind = Act(kind - kActionNames.begin());
  a.stage = int16_t(*stage);
  if (has_microbatch(a.kind)) {
    const std::optional<int> mb = take_number(rest, kMostNumber);
    if (!mb) wrong_token(line, token, "has no microbatch number");
    a.mb = int16_t(*mb);
  } else if (!rest.empty() && rest[0] != '@') {
    wrong_token(line, token, "has a microbatch, which its kind does not take");
  }
  if (!rest.empty() && rest[0] == '@') {
    rest.remove_prefix(1);
    const std::optional<int> id = take_number(rest, std::numeric_limits<uint16_t>::max());
    if (!id || *id == 0) wrong_token(line, token, "has no overlap id from 1 to 65535 behind its @");
    a.overlap = uint16_t(*id);
  }
  if (!rest.empty()) wrong_token(line, token, "goes on after its end");
  return a;
}

}  // namespace

std::vector<std::vector<int>> holders_of(const Schedule& s) {
  std::vector<std::vector<int>> holders(size_t(s.stages), std::vector<int>());
  for (int r = 0; r < int(s.ranks.size()); r++)
    for (const Action& a : s.ranks[size_t(r)]) {
      std::vector<int>& of = holders.at(size_t(a.stage));
      if (of.empty() || of.back() != r) of.push_back(r);
    }
  return holders;
}

bool has_microbatch(Act kind) {
  return kind < Act::Unshard;
}
std::string_view name_of(Act kind) {
  return kActionNames[size_t(kind)];
}

std::string to_text(const Action& a) {
  std::string s = fmt::format("{}{}", a.stage, name_of(a.kind));
  if (has_microbatch(a.kind)) s += std::to_string(a.mb);
  if (a.overlap) s += fmt::format("@{}", a.overlap);
  return s;
}

std::string to_text(const Schedule& s) {
  std::string text;
  if (s.copies != 1) text += fmt::format("{} {}\n", kCopies, s.copies);
  for (const std::vector<Action>& actions : s.ranks) {
    for (const Action& a : actions) text += to_text(a) + ' ';
    if (!actions.empty()) text.pop_back();
    text += '\n';
  }
  return text;
}

namespace {

// "copies 2": the whole of a line, of which `rest` is what stands behind the word.
int parse_copies(int line, std::string_view rest) {
  const size_t begin = std::min(rest.find_first_not_of(" \t\r"), rest.size());
  rest.remove_prefix(begin);
  const std::string_view all = rest;
  const std::optional<int> n = take_number(rest, kMostNumber);
  if (!n || *n < 1 || rest.find_first_not_of(" \t\r") != rest.npos)
    bad_request("schedule line {}: \"{} {}\" is no number of copies; right is as copies 2, from 1 to {}",
                line, kCopies, printable(all), kMostNumber);
  return *n;
}

}  // namespace

Schedule parse_schedule(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  Schedule s;
  for (int line = 1; !text.empty(); line++) {
    std::string_view rest = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(rest.size() + 1, text.size()));
    rest = rest.substr(0, rest.find('#'));
    std::vector<Action> actions;
    const size_t first = std::min(rest.find_first_not_of(kSpace), rest.size());
    if (rest.substr(first).starts_with(kCopies)) {
      s.copies = parse_copies(line, rest.substr(first + kCopies.size()));
      continue;
    }
    for (size_t at; (at = rest.find_first_not_of(kSpace)) != rest.npos;) {
      rest.remove_prefix(at);
      const std::string_view token = rest.substr(0, rest.find_first_of(kSpace));
      rest.remove_prefix(token.size());
      const Action a = parse_action(line, token);
      s.stages = std::max(s.stages, a.stage + 1);
      s.microbatches = std::max(s.microbatches, a.mb + 1);
      actions.push_back(a);
    }
    if (!actions.empty()) s.ranks.push_back(std::move(actions));
  }
  if (s.ranks.empty())
    bad_request("schedule: the text has no action; right is one line a rank, as 0F0 0B0 0Step");
  return s;
}

}  // namespace trireme
