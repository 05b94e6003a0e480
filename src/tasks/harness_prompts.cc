#include "tasks/harness_prompts.h"

#include <algorithm>

#include "base/counted.h"
#include "base/error.h"
#include "tasks/doc_template.h"
#include "tasks/python_literal.h"
#include "tasks/python_random.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

bool is_blank(char c) {
  return std::string_view(" \t\n\r\v\f").find(c) != std::string_view::npos;
}

bool all_digits(const std::string& s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// A value as Python's str() shows it, for texts and integers.
std::string shown(const ordered_json& v) {
  if (v.is_string()) return v.get<std::string>();
  if (v.is_boolean()) return v ? "True" : "False";
  if (v.is_null()) return "None";
  return v.dump();
}

// "" if one of them is empty or the border has a blank already.
std::string border(const std::string& left, const std::string& right, const std::string& delimiter) {
  return left.empty() || right.empty() || is_blank(left.back()) || is_blank(right.front()) ? "" : delimiter;
}

class Asker {
 public:
  Asker(const HarnessTask& task, uint32_t seed) : task_(task), random_(seed) {
    // As the harness: the first document decides what kind of task this is.
    const ordered_json& first = task.docs.front();
    several_right_ = target(task.fields, first).is_array();
    several_contexts_ = text(task.fields, first).is_number();
  }

  HarnessRequest request(const ordered_json& doc) {
    HarnessRequest r;
    document_++;
    if (task_.kind == HarnessTask::Kind::loglikelihood_rolling) {
      r.contexts = {""};
      r.continuations = {shown(target(task_.fields, doc))};
      return r;
    }
    const std::string before = resolved(task_.description, doc) + examples(doc);
    const std::string prefix = resolved(task_.fields.gen_prefix, doc);
    if (task_.kind == HarnessTask::Kind::multiple_choice) {
      r.choices = choices(task_.fields, doc);
      ask_choices(doc, before, prefix, r);
    } else {
      r.contexts = {before + question(task_.fields, shown(text(task_.fields, doc)), prefix,
                                      task_.fields.target_delimiter)};
      r.answers = answers(doc);
    }
    return r;
  }

 private:
  void ask_choices(const ordered_json& doc, const std::string& before, const std::string& prefix,
                   HarnessRequest& r) {
    const std::string& delimiter = task_.fields.target_delimiter;
    const ordered_json right = target(task_.fields, doc);
    if (several_contexts_) {
      for (const std::string& choice : r.choices) {
        r.contexts.push_back(before + question(task_.fields, choice, prefix, ""));
        r.continuations.push_back(delimiter + shown(right));
      }
      r.right = {right_choice("doc_to_text", text(task_.fields, doc), r.choices)};
      return;
    }
    const std::string context =
        before + question(task_.fields, shown(text(task_.fields, doc)), prefix, delimiter);
    for (const std::string& choice : r.choices) {
      r.contexts.push_back(context);
      r.continuations.push_back(delimiter + choice);
    }
    for (const ordered_json& one : right.is_array() ? right : ordered_json::array({right}))
      r.right.push_back(right_choice("doc_to_target", one, r.choices));
  }

  int64_t right_choice(const char* key, const ordered_json& v,
                       const std::vector<std::string>& choices) const {
    const int64_t i = index_of(v, choices);
    if (i < 0)
      fail(key, "= {}, document {}: expected one of its {}, or an index from 0 to {}", v.dump(), document_,
           counted(choices.size(), "choice"), choices.size() - 1);
    return i;
  }

  // -1: no choice.
  static int64_t index_of(const ordered_json& v, const std::vector<std::string>& choices) {
    if (v.is_number_integer()) return v < choices.size() && v >= 0 ? v.get<int64_t>() : -1;
    const auto at = std::find(choices.begin(), choices.end(), shown(v));
    return at == choices.end() ? -1 : at - choices.begin();
  }

  std::vector<std::string> answers(const ordered_json& doc) const {
    const ordered_json v = target(task_.fields, doc);
    if (!task_.fields.choice.is_null()) {
      const std::vector<std::string> all = choices(task_.fields, doc);
      return {all[size_t(right_choice("doc_to_target", v, all))]};
    }
    std::vector<std::string> texts;
    if (several_right_ && v.is_array())
      for (const ordered_json& one : v) texts.push_back(shown(one));
    else
      texts.push_back(shown(v));
    return texts;
  }

  // A question and what comes before its answer.
  static std::string question(const HarnessFields&, const std::string& q, const std::string& prefix,
                              const std::string& delimiter) {
    return prefix.empty() ? q : q + border(q, prefix, delimiter) + prefix;
  }

  std::string examples(const ordered_json& doc) {
    std::string all;
    if (task_.fewshot == 0) return all;
    for (size_t i : chosen(doc)) {
      const ordered_json& example = task_.pool[i];
      const HarnessFields& f = task_.examples;
      const ordered_json q = text(f, example);
      const ordered_json a = target(f, example);
      const std::vector<std::string> c =
          f.choice.is_null() ? std::vector<std::string>{} : choices(f, example);
      const std::string asked = several_contexts_ ? at(c, q) : shown(q);
      const std::string prefix = resolved(f.gen_prefix, example);
      std::string answer = !several_contexts_ && !c.empty() && a.is_number_integer() ? at(c, a)
                           : a.is_array() && !a.empty()                              ? shown(a[0])
                                                                                     : shown(a);
      answer = prefix + border(prefix, answer, " ") + answer;
      all += asked + (prefix.empty() ? f.target_delimiter : border(asked, prefix, f.target_delimiter)) +
             answer + f.fewshot_delimiter;
    }
    return all;
  }

  // Indices in the pool, as samplers.py chooses them.
  std::vector<size_t> chosen(const ordered_json& doc) {
    const auto n = size_t(task_.fewshot);
    const std::vector<ordered_json>& pool = task_.pool;
    std::vector<size_t> all;
    auto drop_itself = [&] {
      if (task_.without_itself) std::erase_if(all, [&](size_t i) { return pool[i] == doc; });
    };
    if (task_.first_n) {
      for (size_t i = 0; i < pool.size(); i++) all.push_back(i);
      drop_itself();
    } else {
      const size_t drawn = n + (task_.without_itself ? 1 : 0);
      if (drawn > pool.size()) too_few(pool.size() - (task_.without_itself ? 1 : 0));
      all = random_.sample(pool.size(), drawn);
      drop_itself();
      if (all.size() < n) {
        std::vector<size_t> others;
        for (size_t i = 0; i < pool.size(); i++)
          if (pool[i] != doc) others.push_back(i);
        if (others.size() < n) too_few(others.size());
        all.clear();
        for (size_t i : random_.sample(others.size(), n)) all.push_back(others[i]);
      }
    }
    if (all.size() < n) too_few(all.size());
    all.resize(n);
    return all;
  }

  [[noreturn]] void too_few(size_t available) const {
    fail("num_fewshot", "= {}: only {}{} {}", task_.fewshot, available, task_.without_itself ? " other" : "",
         available == 1 ? "document exists" : "documents exist");
  }

  std::string at(const std::vector<std::string>& choices, const ordered_json& i) const {
    if (!i.is_number_integer() || i < 0 || i >= choices.size())
      fail("doc_to_target", "= {} in an example of document {}: expected an index from 0 to {}", i.dump(),
           document_, choices.size() - 1);
    return choices[i.get<size_t>()];
  }

  // description and gen_prefix: a key of the document, or a template.
  std::string resolved(const std::string& field, const ordered_json& doc) const {
    if (field.empty()) return field;
    return doc.contains(field) ? shown(doc[field]) : rendered(field, doc, "description");
  }

  std::string rendered(const std::string& source, const ordered_json& doc, const std::string& key) const {
    return source.find('{') == std::string::npos ? source : render_doc(source, doc, task_.file + ": " + key);
  }

  // A text, or an integer: the index of a choice.
  ordered_json text(const HarnessFields& f, const ordered_json& doc) const {
    if (!f.text.is_string()) return f.text.is_null() ? ordered_json("") : f.text;
    const auto& field = f.text.get_ref<const std::string&>();
    if (doc.contains(field)) return doc[field];
    std::string s = rendered(field, doc, "doc_to_text");
    if (all_digits(s) && !f.choice.is_null()) return ordered_json::parse(s, nullptr, false);
    return s;
  }

  // A text, an index, or a list of either.
  ordered_json target(const HarnessFields& f, const ordered_json& doc) const {
    if (!f.target.is_string()) return f.target.is_null() ? ordered_json("") : f.target;
    const auto& field = f.target.get_ref<const std::string&>();
    if (doc.contains(field)) return doc[field];
    std::string s = rendered(field, doc, "doc_to_target");
    if (all_digits(s) && !f.choice.is_null()) return ordered_json::parse(s, nullptr, false);
    if (s.size() >= 2 && s.front() == '[' && s.back() == ']')
      if (const auto list = parse_python_literal(s)) return *list;
    return s;
  }

  std::vector<std::string> choices(const HarnessFields& f, const ordered_json& doc) const {
    ordered_json list = f.choice;
    if (list.is_string()) {
      const std::string field = list.get<std::string>();
      if (doc.contains(field)) {
        list = doc[field];
      } else {
        const auto read = parse_python_literal(rendered(field, doc, "doc_to_choice"));
        if (!read) fail("doc_to_choice", "= {:?}: not a list", rendered(field, doc, "doc_to_choice"));
        list = *read;
      }
    }
    if (list.empty() || (!list.is_array() && !list.is_object()))
      fail("doc_to_choice", "= {}: expected a list", list.dump());
    std::vector<std::string> all;
    for (const ordered_json& one : list) all.push_back(shown(one));
    return all;
  }

  template <class... A>
  [[noreturn]] void fail(const char* key, fmt::format_string<A...> f, A&&... a) const {
    bad_request("{}: {} {}", task_.file, key, fmt::format(f, std::forward<A>(a)...));
  }

  const HarnessTask& task_;
  PythonRandom random_;
  bool several_right_ = false, several_contexts_ = false;
  int64_t document_ = 0;  // the one being asked about, from 1
};

}  // namespace

std::vector<HarnessRequest> harness_requests(const HarnessTask& task, int64_t limit, uint32_t seed) {
  if (task.kind == HarnessTask::Kind::multiple_choice && task.fields.choice.is_null())
    bad_request("{}: doc_to_choice: missing, and output_type = multiple_choice takes it", task.file);
  Asker asker(task, seed);
  std::vector<HarnessRequest> all;
  for (const ordered_json& doc : task.docs) {
    if (limit > 0 && int64_t(all.size()) >= limit) break;
    all.push_back(asker.request(doc));
  }
  return all;
}

}  // namespace trireme
