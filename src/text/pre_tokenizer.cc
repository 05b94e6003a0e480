#include "text/pre_tokenizer.h"

#include <algorithm>

namespace trireme {
namespace {

void cut_literal(std::string_view text, std::string_view what, std::vector<size_t>& ends) {
  size_t begin = 0;
  for (size_t at; (at = text.find(what, begin)) != std::string_view::npos; begin = at + what.size()) {
    if (at > begin) ends.push_back(at);
    ends.push_back(at + what.size());
  }
  if (begin < text.size()) ends.push_back(text.size());
}

void cut_before(std::string_view text, std::string_view what, bool after_other, std::vector<size_t>& ends) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; at += what.size())
    if (at > 0 && !(after_other && text.substr(0, at).ends_with(what))) ends.push_back(at);
  if (!text.empty()) ends.push_back(text.size());
}

}  // namespace

bool PreTokenizer::divisible() const {
  return std::none_of(stages_.begin(), stages_.end(), [](const Stage& s) {
    return std::holds_alternative<std::shared_ptr<const RegexSplit>>(s) || std::holds_alternative<Literal>(s);
  });
}

bool PreTokenizer::has_pattern() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const Stage& s) { return std::holds_alternative<SplitPattern>(s); });
}
bool PreTokenizer::has_before() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const Stage& s) { return std::holds_alternative<Before>(s); });
}

void PreTokenizer::cut(const Stage& stage, std::string_view text, std::vector<size_t>& ends) const {
  auto take = [&](std::string_view word) { ends.push_back(size_t(word.data() - text.data()) + word.size()); };
  if (auto* known = std::get_if<SplitPattern>(&stage))
    split_words(*known, text, take);
  else if (auto* digits = std::get_if<Digits>(&stage))
    split_digits(text, digits->each, take);
  else if (auto* literal = std::get_if<Literal>(&stage))
    cut_literal(text, literal->text, ends);
  else if (auto* before = std::get_if<Before>(&stage))
    cut_before(text, before->text, before->after_other, ends);
  else
    std::get<std::shared_ptr<const RegexSplit>>(stage)->pieces(text, ends);
}

}  // namespace trireme
