#include "text/jinja/value.h"

#include <algorithm>

#include "text/jinja/characters.h"

namespace trireme::jinja {
namespace {

int deeper(int below, Work& work) {
  if (below + 1 > kMostNesting) work.fail("nests values deeper than {}", kMostNesting);
  return below + 1;
}

Value item_from(const nlohmann::ordered_json& json, Work& work) {
  return Value::from_json(json, work);
}

}  // namespace

Value Value::list(std::vector<Value> items, Work& work, bool tuple) {
  work.step(int64_t(items.size()) + 1);
  int depth = 0;
  for (const Value& v : items) depth = std::max(depth, v.depth());
  Value out;
  out.data_ = std::make_shared<const Sequence>(Sequence{std::move(items), deeper(depth, work), tuple});
  return out;
}

Value Value::dict(Entries entries, Work& work) {
  work.step(int64_t(entries.size()) + 1);
  int depth = 0;
  for (const auto& [key, v] : entries) depth = std::max(depth, v.depth());
  Value out;
  out.data_ = std::make_shared<const Mapping>(Mapping{std::move(entries), deeper(depth, work)});
  return out;
}

Value Value::from_json(const nlohmann::ordered_json& json, Work& work) {
  using Kind = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Kind::null:
      return None();
    case Kind::boolean:
      return json.get<bool>();
    case Kind::number_integer:
      return json.get<int64_t>();
    case Kind::number_unsigned: {
      const uint64_t n = json.get<uint64_t>();
      if (n > uint64_t(INT64_MAX)) work.fail("the number {} is above 2^63 - 1", n);
      return int64_t(n);
    }
    case Kind::number_float:
      return json.get<double>();
    case Kind::string:
      work.move(json.get_ref<const std::string&>().size());
      return json.get_ref<const std::string&>();
    case Kind::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(item_from(item, work));
      return list(std::move(items), work);
    }
    case Kind::object: {
      Entries entries;
      for (const auto& [key, item] : json.items()) entries.emplace_back(key, item_from(item, work));
      return dict(std::move(entries), work);
    }
    default:
      work.fail("a JSON value of an unknown kind");
  }
}

int64_t Value::integer() const {
  if (auto b = std::get_if<bool>(&data_)) return *b;
  return std::get<int64_t>(data_);
}

double Value::number() const {
  if (auto d = std::get_if<double>(&data_)) return *d;
  return double(integer());
}

int Value::depth() const {
  if (const Sequence* s = sequence()) return s->depth;
  if (const Mapping* m = mapping()) return m->depth;
  if (const Loop* l = loop()) return l->items.depth() + 1;
  if (const Callable* c = callable()) return c->self.depth() + 1;
  return 0;
}

const Value* find(const Entries& entries, std::string_view key) {
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

std::string_view kind_name(const Value& v) {
  static constexpr std::string_view kNames[] = {"undefined", "None", "bool",      "int",  "float",   "str",
                                                "list",      "dict", "namespace", "loop", "function"};
  if (v.sequence() && v.sequence()->tuple) return "tuple";
  return kNames[v.data().index()];
}

void check_defined(const Value& v, const Work& work) {
  if (work.strict && v.is_undefined()) work.fail("{:?} is undefined", std::get<Undefined>(v.data()).name);
}

bool truth(const Value& v) {
  if (v.is_undefined() || v.is_none()) return false;
  if (v.is_number()) return v.number() != 0;
  if (const std::string* s = v.text()) return !s->empty();
  if (const Sequence* s = v.sequence()) return !s->items.empty();
  if (const Mapping* m = v.mapping()) return !m->entries.empty();
  return true;
}

bool equal(const Value& a, const Value& b, Work& work) {
  work.step();
  check_defined(a, work);
  check_defined(b, work);
  if (a.is_number() && b.is_number()) {
    const bool whole = !std::holds_alternative<double>(a.data()) && !std::holds_alternative<double>(b.data());
    return whole ? a.integer() == b.integer() : a.number() == b.number();
  }
  if (a.data().index() != b.data().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const std::string* s = a.text()) {
    work.move(s->size());
    return *s == *b.text();
  }
  if (const Sequence* s = a.sequence()) {
    const Sequence* t = b.sequence();
    return s->tuple == t->tuple &&
           std::equal(s->items.begin(), s->items.end(), t->items.begin(), t->items.end(),
                      [&](const Value& x, const Value& y) { return equal(x, y, work); });
  }
  if (const Mapping* m = a.mapping()) {
    const Mapping* n = b.mapping();
    return m->entries.size() == n->entries.size() &&
           std::all_of(m->entries.begin(), m->entries.end(), [&](const auto& entry) {
             work.step(int64_t(n->entries.size()));
             const Value* other = find(n->entries, entry.first);
             return other && equal(entry.second, *other, work);
           });
  }
  if (a.name_space()) return a.name_space() == b.name_space();
  if (a.loop()) return a.loop() == b.loop();
  return a.callable() == b.callable();
}

bool less(const Value& a, const Value& b, Work& work) {
  work.step();
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (a.text() && b.text()) {
    work.move(a.text()->size());
    return *a.text() < *b.text();  // UTF-8 bytes sort as code points do
  }
  if (a.sequence() && b.sequence() && a.sequence()->tuple == b.sequence()->tuple) {
    const std::vector<Value>&x = a.sequence()->items, &y = b.sequence()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); i++)
      if (!equal(x[i], y[i], work)) return less(x[i], y[i], work);
    return x.size() < y.size();
  }
  work.fail("'<' is not supported between {} and {}", kind_name(a), kind_name(b));
}

bool contains(const Value& container, const Value& item, Work& work) {
  check_defined(container, work);
  if (container.is_undefined()) return false;
  if (const std::string* s = container.text()) {
    if (!item.text()) work.fail("'in' of a text wants a text, not {}", kind_name(item));
    work.move(s->size());
    return find_text(*s, *item.text(), 0) != std::string::npos;
  }
  if (const Mapping* m = container.mapping()) {
    work.step(int64_t(m->entries.size()));
    return item.text() && find(m->entries, *item.text());
  }
  const std::vector<Value> items = items_of(container, work);
  return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equal(v, item, work); });
}

std::vector<Value> items_of(const Value& v, Work& work) {
  check_defined(v, work);
  if (v.is_undefined()) return {};
  if (const Sequence* s = v.sequence()) {
    work.step(int64_t(s->items.size()));
    return s->items;
  }
  std::vector<Value> out;
  if (const Mapping* m = v.mapping()) {
    work.step(int64_t(m->entries.size()));
    for (const auto& [key, value] : m->entries) out.emplace_back(key);
    return out;
  }
  if (const std::string* s = v.text()) {
    work.step(int64_t(s->size()));
    for (size_t at = 0; at < s->size();) {
      const size_t bytes = character_at(*s, at);
      out.emplace_back(s->substr(at, bytes));
      at += bytes;
    }
    return out;
  }
  work.fail("{} is not iterable", kind_name(v));
}

int64_t length_of(const Value& v, Work& work) {
  check_defined(v, work);
  if (v.is_undefined()) return 0;
  if (const Sequence* s = v.sequence()) return int64_t(s->items.size());
  if (const Mapping* m = v.mapping()) return int64_t(m->entries.size());
  if (const std::string* s = v.text()) {
    work.move(s->size());
    return characters(*s);
  }
  if (const Loop* l = v.loop()) return length_of(l->items, work);
  work.fail("{} has no length", kind_name(v));
}

}  // namespace trireme::jinja
