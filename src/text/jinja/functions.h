// Filters, tests, and methods of values: functions of Python and Jinja that chat templates call.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace trireme::jinja {

// Arguments of a call, by position and by name.
struct Arguments {
  std::vector<Value> values;
  Entries named;

  // Puts arguments at their parameters' places. Fails, naming `function`, for one too many or one unknown.
  void bind(std::string_view function, std::initializer_list<std::string_view> parameters, size_t required,
            Work&) const;
  // After bind(): the argument of a parameter, or null.
  const Value* get(size_t place, std::string_view name) const;
};

Value filtered(std::string_view filter, const Value&, const Arguments&, Work&);
bool passes(std::string_view test, const Value&, const Arguments&, Work&);

bool is_method(const Value&, std::string_view name);
Value call_method(const Value& self, std::string_view method, const Arguments&, Work&);

// value.name and value[key]: undefined if it does not exist.
Value attribute_of(const Value&, const std::string& name, Work&);
Value item_of(const Value&, const Value& key, Work&);
// value[begin:end:step]; a bound may be none.
Value slice_of(const Value&, const Value& begin, const Value& end, const Value& step, Work&);

// Integer argument of a function; fails for another kind.
int64_t integer_of(const Value&, std::string_view what, Work&);
const std::string& text_of(const Value&, std::string_view what, Work&);

std::string replaced(std::string_view text, std::string_view from, std::string_view to, int64_t most, Work&);

}  // namespace trireme::jinja
