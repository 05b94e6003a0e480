// Jinja's filters.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/jinja/characters.h"
#include "text/jinja/functions.h"
#include "text/jinja/python_text.h"
#include "text/jinja/syntax.h"

namespace trireme::jinja {
namespace {

using Args = Arguments;
using Filter = Value (*)(const Value&, const Args&, Work&);

const Value* argument(const Args& a, size_t i, std::string_view name) {
  return a.get(i, name);
}
bool flag(const Args& a, size_t i, std::string_view name, bool otherwise) {
  const Value* v = a.get(i, name);
  return v ? truth(*v) : otherwise;
}
void none(std::string_view filter, const Args& a, Work& w) {
  a.bind(filter, {}, 0, w);
}

// item.a.b, or item[0]: what `attribute=` of a filter names.
Value reached(Value v, const Value& path, Work& w) {
  if (path.is_integer()) return item_of(v, path, w);
  const std::string& names = text_of(path, "attribute", w);
  for (size_t at = 0; at <= names.size();) {
    const size_t dot = std::min(names.find('.', at), names.size());
    const std::string name = names.substr(at, dot - at);
    const bool number = !name.empty() && name.size() < 10 &&
                        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    v = item_of(v, number ? Value(int64_t(std::stol(name))) : Value(name), w);
    at = dot + 1;
  }
  return v;
}

Value absolute(const Value& v, const Args& a, Work& w) {
  none("abs", a, w);
  if (!v.is_number()) w.fail("abs wants a number, not {}", kind_name(v));
  if (!v.is_integer()) return std::fabs(v.number());
  return v.integer() < 0 ? int64_t(0 - uint64_t(v.integer())) : v.integer();
}
template <Case to>
Value cased(const Value& v, const Args& a, Work& w) {
  none("a case filter", a, w);
  const std::string text = str_of(v, w);
  w.move(text.size());
  return with_case(text, to);
}
Value or_default(const Value& v, const Args& a, Work& w) {
  a.bind("default", {"default_value", "boolean"}, 0, w);
  const bool keeps = flag(a, 1, "boolean", false) ? truth(v) : !v.is_undefined();
  if (keeps) return v;
  const Value* otherwise = argument(a, 0, "default_value");
  return otherwise ? *otherwise : Value("");
}
Value items(const Value& v, const Args& a, Work& w) {
  none("items", a, w);
  if (v.is_undefined()) return Value::list({}, w);
  return call_method(v, "items", {}, w);
}
Value dictsort(const Value& v, const Args& a, Work& w) {
  a.bind("dictsort", {"case_sensitive", "by", "reverse"}, 0, w);
  if (argument(a, 1, "by") && text_of(*argument(a, 1, "by"), "dictsort", w) != "key")
    w.fail("dictsort by {:?} is not supported", *argument(a, 1, "by")->text());
  const bool exact = flag(a, 0, "case_sensitive", false), back = flag(a, 2, "reverse", false);
  std::vector<Value> all = items_of(items(v, {}, w), w);
  auto key = [&](const Value& item) {
    const std::string& k = *item.sequence()->items[0].text();
    return exact ? k : with_case(k, Case::lower);
  };
  std::stable_sort(all.begin(), all.end(), [&](const Value& x, const Value& y) {
    w.step();
    return back ? key(y) < key(x) : key(x) < key(y);
  });
  return Value::list(std::move(all), w);
}
Value first(const Value& v, const Args& a, Work& w) {
  none("first", a, w);
  const std::vector<Value> all = items_of(v, w);
  return all.empty() ? Value::undefined("first of nothing") : all.front();
}
Value last(const Value& v, const Args& a, Work& w) {
  none("last", a, w);
  const std::vector<Value> all = items_of(v, w);
  return all.empty() ? Value::undefined("last of nothing") : all.back();
}
Value indent(const Value& v, const Args& a, Work& w) {
  a.bind("indent", {"width", "first", "blank"}, 0, w);
  const Value* width = argument(a, 0, "width");
  const std::string text = str_of(v, w);
  if (width && width->is_integer() && width->integer() > 1000)
    w.fail("indent by {} is not supported", width->integer());
  const std::string by =
      width && width->text()
          ? *width->text()
          : std::string(size_t(std::max<int64_t>(0, width ? integer_of(*width, "indent", w) : 4)), ' ');
  const bool blank = flag(a, 2, "blank", false);
  std::string out = flag(a, 1, "first", false) ? by : "";
  for (size_t at = 0;;) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (at > 0 && (blank || !line.empty())) out += by;
    out += line;
    if (out.size() > kMostText) w.move(out.size());
    if (end == text.size()) break;
    out += '\n';
    at = end + 1;
  }
  w.move(out.size());
  return out;
}
Value to_int(const Value& v, const Args& a, Work& w) {
  a.bind("int", {"default"}, 0, w);
  const Value* given = argument(a, 0, "default");
  const Value otherwise = given ? *given : Value(0);
  if (v.is_integer() || v.is_boolean()) return v.integer();
  double d = 0;
  if (v.is_number()) {
    d = v.number();
  } else if (v.text()) {
    const std::string text(strip(*v.text(), nullptr, true, true));
    const size_t sign = text.starts_with('+');
    int64_t n = 0;
    const char *begin = text.data() + sign, *end = text.data() + text.size();
    if (const auto r = std::from_chars(begin, end, n); r.ec == std::errc() && r.ptr == end) return n;
    if (const auto r = std::from_chars(begin, end, d); r.ec != std::errc() || r.ptr != end) return otherwise;
  } else {
    return otherwise;
  }
  if (!(std::fabs(d) < 9e18)) return otherwise;
  return int64_t(d);
}
Value to_float(const Value& v, const Args& a, Work& w) {
  a.bind("float", {"default"}, 0, w);
  const Value* given = argument(a, 0, "default");
  if (v.is_number()) return v.number();
  if (v.text()) {
    const std::string text(strip(*v.text(), nullptr, true, true));
    double d = 0;
    const char *begin = text.data() + text.starts_with('+'), *end = text.data() + text.size();
    if (const auto r = std::from_chars(begin, end, d); r.ec == std::errc() && r.ptr == end) return d;
  }
  return given ? *given : Value(0.0);
}
Value join(const Value& v, const Args& a, Work& w) {
  a.bind("join", {"d", "attribute"}, 0, w);
  const Value *by = argument(a, 0, "d"), *attribute = argument(a, 1, "attribute");
  const std::string between = by ? str_of(*by, w) : "";
  std::string out;
  bool begun = false;
  for (const Value& item : items_of(v, w)) {
    if (begun) out += between;
    begun = true;
    out += str_of(attribute ? reached(item, *attribute, w) : item, w);
    if (out.size() > kMostText) w.move(out.size());
  }
  w.move(out.size());
  return out;
}
Value length(const Value& v, const Args& a, Work& w) {
  none("length", a, w);
  return length_of(v, w);
}
Value list(const Value& v, const Args& a, Work& w) {
  none("list", a, w);
  return Value::list(items_of(v, w), w);
}
Value map(const Value& v, const Args& a, Work& w) {
  std::vector<Value> out;
  const Value *attribute = find(a.named, "attribute"), *otherwise = find(a.named, "default");
  if (attribute) {
    if (a.values.size() + a.named.size() > size_t(otherwise ? 2 : 1)) w.fail("map: too many arguments");
    for (const Value& item : items_of(v, w)) {
      out.push_back(reached(item, *attribute, w));
      if (out.back().is_undefined() && otherwise) out.back() = *otherwise;
    }
    return Value::list(std::move(out), w);
  }
  if (a.values.empty()) w.fail("map wants attribute= or the name of a filter");
  const std::string& filter = text_of(a.values[0], "map", w);
  if (!is_filter(filter)) w.fail("the filter {:?} is not supported", filter);
  const Args rest{{a.values.begin() + 1, a.values.end()}, a.named};
  for (const Value& item : items_of(v, w)) out.push_back(filtered(filter, item, rest, w));
  return Value::list(std::move(out), w);
}
// select, reject, selectattr, rejectattr.
template <bool keeps, bool by_attribute>
Value chosen(const Value& v, const Args& a, Work& w) {
  const size_t skip = by_attribute ? 1 : 0;
  if (a.values.size() < skip) w.fail("selectattr and rejectattr want an attribute");
  const bool tested = a.values.size() > skip;
  const std::string test = tested ? text_of(a.values[skip], "a test", w) : "";
  if (tested && !is_test(test)) w.fail("the test {:?} is not supported", test);
  const Args rest{{a.values.begin() + long(skip + tested), a.values.end()}, a.named};
  std::vector<Value> out;
  for (const Value& item : items_of(v, w)) {
    const Value looked = by_attribute ? reached(item, a.values[0], w) : item;
    if ((tested ? passes(test, looked, rest, w) : truth(looked)) == keeps) out.push_back(item);
  }
  return Value::list(std::move(out), w);
}
Value replace(const Value& v, const Args& a, Work& w) {
  a.bind("replace", {"old", "new", "count"}, 2, w);
  const Value* count = argument(a, 2, "count");
  return replaced(str_of(v, w), str_of(*argument(a, 0, "old"), w), str_of(*argument(a, 1, "new"), w),
                  count && !count->is_none() ? integer_of(*count, "replace", w) : -1, w);
}
Value reverse(const Value& v, const Args& a, Work& w) {
  none("reverse", a, w);
  std::vector<Value> all = items_of(v, w);
  std::reverse(all.begin(), all.end());
  if (!v.text()) return Value::list(std::move(all), w);
  std::string out;
  for (const Value& c : all) out += *c.text();
  return out;
}
Value round(const Value& v, const Args& a, Work& w) {
  a.bind("round", {"precision", "method"}, 0, w);
  const Value *precision = argument(a, 0, "precision"), *method = argument(a, 1, "method");
  if (method && text_of(*method, "round", w) != "common")
    w.fail("round by {:?} is not supported", *method->text());
  if (!v.is_number()) w.fail("round wants a number, not {}", kind_name(v));
  const int64_t digits = precision ? integer_of(*precision, "round", w) : 0;
  if (digits < 0 || digits > 15) w.fail("round to {} digits is not supported", digits);
  return std::strtod(fmt::format("{:.{}f}", v.number(), digits).c_str(), nullptr);
}
// The key that sort and unique compare: without `exact`, texts in lower case.
Value compared(const Value& v, const Value* attribute, bool exact, Work& w) {
  Value key = attribute && !attribute->is_none() ? reached(v, *attribute, w) : v;
  return key.text() && !exact ? Value(with_case(*key.text(), Case::lower)) : key;
}
Value sort(const Value& v, const Args& a, Work& w) {
  a.bind("sort", {"reverse", "case_sensitive", "attribute"}, 0, w);
  const bool back = flag(a, 0, "reverse", false), exact = flag(a, 1, "case_sensitive", false);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items_of(v, w))
    keyed.emplace_back(compared(item, argument(a, 2, "attribute"), exact, w), item);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return back ? less(y.first, x.first, w) : less(x.first, y.first, w);
  });
  std::vector<Value> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return Value::list(std::move(out), w);
}
Value unique(const Value& v, const Args& a, Work& w) {
  a.bind("unique", {"case_sensitive", "attribute"}, 0, w);
  std::vector<Value> seen, out;
  for (const Value& item : items_of(v, w)) {
    Value key = compared(item, argument(a, 1, "attribute"), flag(a, 0, "case_sensitive", false), w);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equal(s, key, w); })) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return Value::list(std::move(out), w);
}
Value string(const Value& v, const Args& a, Work& w) {
  none("string", a, w);
  return str_of(v, w);
}
Value tojson(const Value& v, const Args& a, Work& w) {
  a.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, w);
  JsonStyle style{.ascii = flag(a, 0, "ensure_ascii", false), .sorted = flag(a, 3, "sort_keys", false)};
  if (const Value* by = argument(a, 1, "indent"); by && !by->is_none()) {
    if (by->is_integer() && by->integer() > 1000)
      w.fail("tojson: indent = {} is not supported", by->integer());
    style.indent = by->text() ? *by->text()
                              : std::string(size_t(std::max<int64_t>(0, integer_of(*by, "indent", w))), ' ');
    style.item = ",";
  }
  if (const Value* s = argument(a, 2, "separators"); s && !s->is_none()) {
    if (!s->sequence() || s->sequence()->items.size() != 2) w.fail("tojson: separators wants two texts");
    style.item = text_of(s->sequence()->items[0], "separators", w);
    style.key = text_of(s->sequence()->items[1], "separators", w);
  }
  return json_of(v, style, w);
}
Value trim(const Value& v, const Args& a, Work& w) {
  a.bind("trim", {"chars"}, 0, w);
  const Value* of = argument(a, 0, "chars");
  const std::string text = str_of(v, w);
  const std::string chars = of && !of->is_none() ? str_of(*of, w) : "";
  w.move(text.size() * (1 + chars.size() / 64));
  return strip(text, of && !of->is_none() ? &chars : nullptr, true, true);
}

struct Named {
  std::string_view name;
  Filter filter;
};
constexpr std::array kFilters = {
    Named{"abs", absolute},
    Named{"capitalize", cased<Case::capitalize>},
    Named{"count", length},
    Named{"d", or_default},
    Named{"default", or_default},
    Named{"dictsort", dictsort},
    Named{"first", first},
    Named{"float", to_float},
    Named{"indent", indent},
    Named{"int", to_int},
    Named{"items", items},
    Named{"join", join},
    Named{"last", last},
    Named{"length", length},
    Named{"list", list},
    Named{"lower", cased<Case::lower>},
    Named{"map", map},
    Named{"reject", chosen<false, false>},
    Named{"rejectattr", chosen<false, true>},
    Named{"replace", replace},
    Named{"reverse", reverse},
    Named{"round", round},
    Named{"safe", string},
    Named{"select", chosen<true, false>},
    Named{"selectattr", chosen<true, true>},
    Named{"sort", sort},
    Named{"string", string},
    Named{"title", cased<Case::title>},
    Named{"tojson", tojson},
    Named{"trim", trim},
    Named{"unique", unique},
    Named{"upper", cased<Case::upper>},
};
const Named* filter_called(std::string_view name) {
  const auto at =
      std::find_if(kFilters.begin(), kFilters.end(), [&](const Named& n) { return n.name == name; });
  return at == kFilters.end() ? nullptr : &*at;
}

}  // namespace

bool is_filter(std::string_view name) {
  return filter_called(name) != nullptr;
}

Value filtered(std::string_view filter, const Value& v, const Arguments& arguments, Work& work) {
  work.step();
  const Named* named = filter_called(filter);
  require(named, "the parser takes filters that there are");
  return named->filter(v, arguments, work);
}

}  // namespace trireme::jinja
