// Values in a template: Python's, as far as chat templates see them. All are immutable except namespaces, so
// no value contains itself.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "text/jinja/work.h"

namespace trireme::jinja {

class Value;
struct Macro;  // syntax.h

struct Undefined {
  std::string name;  // the name without a value
};
struct None {};
using Text = std::shared_ptr<const std::string>;
struct Sequence {
  std::vector<Value> items;
  int depth = 1;  // nesting levels of lists, >= 1
  bool tuple = false;
};
using Entries = std::vector<std::pair<std::string, Value>>;  // in the order of insertion
struct Mapping {
  Entries entries;
  int depth = 1;
};
// Owned by the interpreter that made it, so that one which holds itself does not outlive it.
struct Namespace {
  Entries entries;
};
struct Loop;
struct Callable;

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const Sequence>,
                            std::shared_ptr<const Mapping>, Namespace*, std::shared_ptr<const Loop>,
                            std::shared_ptr<const Callable>>;
  Value() = default;
  Value(None n) : data_(n) {}
  Value(bool b) : data_(b) {}
  Value(int64_t i) : data_(i) {}
  Value(int i) : data_(int64_t(i)) {}
  Value(double d) : data_(d) {}
  Value(std::string s) : data_(std::make_shared<const std::string>(std::move(s))) {}
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(Namespace* n) : data_(n) {}
  Value(std::shared_ptr<const Loop> l) : data_(std::move(l)) {}
  Value(std::shared_ptr<const Callable> c) : data_(std::move(c)) {}
  static Value undefined(std::string name) {
    Value v;
    v.data_ = Undefined{std::move(name)};
    return v;
  }
  static Value list(std::vector<Value> items, Work&, bool tuple = false);
  static Value dict(Entries entries, Work&);  // keys differ
  static Value from_json(const nlohmann::ordered_json&, Work&);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(data_); }
  bool is_boolean() const { return std::holds_alternative<bool>(data_); }
  bool is_number() const { return is_boolean() || is_integer() || std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<Text>(data_); }
  // The content, or null for a different kind.
  const std::string* text() const {
    const Text* t = std::get_if<Text>(&data_);
    return t ? t->get() : nullptr;
  }
  const Sequence* sequence() const { return pointed<Sequence>(); }
  const Mapping* mapping() const { return pointed<Mapping>(); }
  const Loop* loop() const { return pointed<Loop>(); }
  const Callable* callable() const { return pointed<Callable>(); }
  Namespace* name_space() const {
    auto n = std::get_if<Namespace*>(&data_);
    return n ? *n : nullptr;
  }
  int64_t integer() const;  // requires a boolean or an integer
  double number() const;    // requires a number
  const Data& data() const { return data_; }
  int depth() const;

 private:
  template <class T>
  const T* pointed() const {
    auto p = std::get_if<std::shared_ptr<const T>>(&data_);
    return p ? p->get() : nullptr;
  }
  Data data_;
};

struct Loop {
  Value items;  // a list
  int64_t index = 0;
  int depth = 1;  // nesting level, from 1
};
struct Callable {
  enum class Kind : uint8_t { global, method, macro, caller } kind = Kind::global;
  std::string name;
  Value self = {};               // a method: its object; a caller: the number of its {% call %}
  const Macro* macro = nullptr;  // owned by the template, which outlives it
};

// Null if the key is not in it.
const Value* find(const Entries&, std::string_view key);
std::string_view kind_name(const Value&);  // Python's name of the type, for messages

// Fails if the value is undefined and the rendering is strict.
void check_defined(const Value&, const Work&);
bool truth(const Value&);
bool equal(const Value&, const Value&, Work&);
// Whether a comes before b: numbers and texts; others fail.
bool less(const Value& a, const Value& b, Work&);
bool contains(const Value& container, const Value& item, Work&);
// Items that a `for` visits: elements of a list or tuple, keys of a dict, characters of a text.
std::vector<Value> items_of(const Value&, Work&);
int64_t length_of(const Value&, Work&);

}  // namespace trireme::jinja
