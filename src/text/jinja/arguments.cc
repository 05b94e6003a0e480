#include <algorithm>

#include "text/jinja/characters.h"
#include "text/jinja/functions.h"
#include "text/jinja/python_text.h"

namespace trireme::jinja {

void Arguments::bind(std::string_view function, std::initializer_list<std::string_view> parameters,
                     size_t required, Work& work) const {
  if (values.size() > parameters.size())
    work.fail("{} takes {} arguments at most, not {}", function, parameters.size(), values.size());
  for (const auto& [name, value] : named) {
    const auto at = std::find(parameters.begin(), parameters.end(), name);
    if (at == parameters.end()) work.fail("{}: the argument {:?} is not supported", function, name);
    if (size_t(at - parameters.begin()) < values.size())
      work.fail("{}: the argument {:?} is given twice", function, name);
  }
  size_t place = 0;
  for (std::string_view name : parameters) {
    if (place == required) break;
    if (!get(place++, name)) work.fail("{}: the argument {:?} is missing", function, name);
  }
}

const Value* Arguments::get(size_t place, std::string_view name) const {
  return place < values.size() ? &values[place] : find(named, name);
}

int64_t integer_of(const Value& v, std::string_view what, Work& work) {
  if (!v.is_integer() && !v.is_boolean()) work.fail("{} wants an integer, not {}", what, kind_name(v));
  return v.integer();
}

const std::string& text_of(const Value& v, std::string_view what, Work& work) {
  if (v.is_undefined()) work.fail("{:?} is undefined", std::get<Undefined>(v.data()).name);
  if (!v.text()) work.fail("{} wants a text, not {}", what, kind_name(v));
  return *v.text();
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, int64_t most,
                     Work& work) {
  std::string out;
  work.move(text.size());
  size_t at = 0;
  auto bounded = [&](std::string_view part) {
    out += part;
    if (out.size() > kMostText) work.move(out.size());
  };
  for (int64_t n = 0; most < 0 || n < most; n++) {
    const size_t found = find_text(text, from, at);
    if (found == std::string_view::npos) break;
    bounded(text.substr(at, found - at));
    bounded(to);
    at = found + from.size();
    if (!from.empty()) continue;
    if (at >= text.size()) return out;  // an empty text is found before each character and at the end
    const size_t bytes = character_at(text, at);
    bounded(text.substr(at, bytes));
    at += bytes;
  }
  bounded(text.substr(at));
  work.move(out.size());
  return out;
}

namespace {

const Value* loop_attribute(const Loop& loop, std::string_view name, Value& made, Work& work) {
  const int64_t n = length_of(loop.items, work), i = loop.index;
  const auto& items = loop.items.sequence()->items;
  if (name == "index") return made = i + 1, &made;
  if (name == "index0") return made = i, &made;
  if (name == "revindex") return made = n - i, &made;
  if (name == "revindex0") return made = n - i - 1, &made;
  if (name == "first") return made = i == 0, &made;
  if (name == "last") return made = i == n - 1, &made;
  if (name == "length") return made = n, &made;
  if (name == "depth") return made = int64_t(loop.depth), &made;
  if (name == "depth0") return made = int64_t(loop.depth - 1), &made;
  if (name == "previtem") return made = i > 0 ? items[size_t(i - 1)] : Value::undefined("previtem"), &made;
  if (name == "nextitem")
    return made = i + 1 < n ? items[size_t(i + 1)] : Value::undefined("nextitem"), &made;
  return nullptr;
}

[[noreturn]] void of_undefined(const Value& v, Work& work) {
  work.fail("{:?} is undefined", std::get<Undefined>(v.data()).name);
}

}  // namespace

Value attribute_of(const Value& v, const std::string& name, Work& work) {
  work.step();
  if (v.is_undefined()) of_undefined(v, work);
  if (is_method(v, name))
    return Value(std::make_shared<const Callable>(Callable{Callable::Kind::method, name, v}));
  const Entries* entries = v.mapping()      ? &v.mapping()->entries
                           : v.name_space() ? &v.name_space()->entries
                                            : nullptr;
  if (entries) {
    work.step(int64_t(entries->size()));
    if (const Value* found = find(*entries, name)) return *found;
  }
  Value made;
  if (v.loop() && loop_attribute(*v.loop(), name, made, work)) return made;
  if (v.loop()) work.fail("loop.{} is not supported", name);
  return Value::undefined(name);
}

Value item_of(const Value& v, const Value& key, Work& work) {
  work.step();
  if (v.is_undefined()) of_undefined(v, work);
  if (const Mapping* m = v.mapping()) {
    work.step(int64_t(m->entries.size()));
    if (const std::string* name = key.text()) {
      if (const Value* found = find(m->entries, *name)) return *found;
      return is_method(v, *name) ? attribute_of(v, *name, work) : Value::undefined(*name);
    }
    return Value::undefined(str_of(key, work));
  }
  if (key.is_integer() || key.is_boolean()) {
    const int64_t n = v.sequence() || v.text() ? length_of(v, work) : 0;
    const int64_t at = key.integer() < 0 ? key.integer() + n : key.integer();
    if (at < 0 || at >= n) return Value::undefined(std::to_string(key.integer()));
    if (const Sequence* s = v.sequence()) return s->items[size_t(at)];
    const size_t begin = byte_of(*v.text(), at);
    return v.text()->substr(begin, character_at(*v.text(), begin));
  }
  return key.text() ? attribute_of(v, *key.text(), work) : Value::undefined(str_of(key, work));
}

Value slice_of(const Value& v, const Value& begin, const Value& end, const Value& step, Work& work) {
  if (v.is_undefined()) of_undefined(v, work);
  if (!v.sequence() && !v.text()) work.fail("a slice of {} is not supported", kind_name(v));
  const int64_t by = step.is_none() ? 1 : integer_of(step, "a slice", work);
  if (by == 0) work.fail("a slice with step 0");
  const int64_t n = length_of(v, work);
  auto bound = [&](const Value& b, int64_t otherwise) {
    if (b.is_none()) return otherwise;
    int64_t i = integer_of(b, "a slice", work);
    if (i < 0) i = i < -n ? -1 : i + n;
    return std::clamp<int64_t>(i, by > 0 ? 0 : -1, by > 0 ? n : n - 1);
  };
  const int64_t from = bound(begin, by > 0 ? 0 : n - 1), to = bound(end, by > 0 ? n : -1);
  if (v.text() && by == 1) {
    const size_t first = byte_of(*v.text(), from), last = byte_of(*v.text(), std::max(from, to));
    work.move(v.text()->size());
    return v.text()->substr(first, last - first);
  }
  const std::vector<Value> all = items_of(v, work);
  std::vector<Value> items;
  std::string text;
  // Steps are at most n, so that no sum is out of range.
  const int64_t stride = std::clamp<int64_t>(by, -n - 1, n + 1);
  for (int64_t i = from; stride > 0 ? i < to : i > to; i += stride) {
    if (v.text())
      text += *all[size_t(i)].text();
    else
      items.push_back(all[size_t(i)]);
  }
  if (v.text()) return text;
  return Value::list(std::move(items), work, v.sequence()->tuple);
}

}  // namespace trireme::jinja
