#include "text/jinja/interpreter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "text/jinja/characters.h"
#include "text/jinja/python_text.h"

namespace trireme::jinja {
namespace {

constexpr std::string_view kGlobals[] = {"raise_exception", "strftime_now", "range", "dict", "namespace"};

struct Scope {
  Scope* outer = nullptr;
  Entries names = {};

  void set(const std::string& name, Value v) {
    for (auto& [known, value] : names)
      if (known == name) {
        value = std::move(v);
        return;
      }
    names.emplace_back(name, std::move(v));
  }
};

enum class Flow : uint8_t { on, break_, continue_ };

class Interpreter {
 public:
  Interpreter(Entries variables, int64_t now, Work& work) : work_(work), now_(now) {
    root_.names = std::move(variables);
  }

  Rendered run(const Body& body) {
    out_ = &result_.text;
    run(body, root_);
    return std::move(result_);
  }

 private:
  struct Deeper {
    explicit Deeper(Interpreter& i) : interpreter(i) {
      if (++interpreter.depth_ > kMostDepth) interpreter.work_.fail("goes deeper than {} calls", kMostDepth);
    }
    ~Deeper() { interpreter.depth_--; }
    Interpreter& interpreter;
  };

  // ---- statements ----
  Flow run(const Body& body, Scope& scope) {
    const Deeper deeper(*this);
    for (const auto& s : body)
      if (const Flow flow = run(*s, scope); flow != Flow::on) return flow;
    return Flow::on;
  }
  Flow run(const Stmt& s, Scope& scope) {
    work_.line = s.line;
    work_.step();
    switch (s.kind) {
      case Stmt::Kind::data:
        write(s.text);
        return Flow::on;
      case Stmt::Kind::print:
        write(str_of(eval(*s.expr, scope), work_));
        return Flow::on;
      case Stmt::Kind::if_:
        for (const auto& [condition, body] : s.branches)
          if (!condition || true_of(*condition, scope)) return run(body, scope);
        return Flow::on;
      case Stmt::Kind::for_:
        return loop(s, scope);
      case Stmt::Kind::set:
        set(s, scope);
        return Flow::on;
      case Stmt::Kind::set_block:
        scope.set(s.names[0], set_block(s, scope));
        return Flow::on;
      case Stmt::Kind::macro:
        scope.set(s.macro->name, Value(std::make_shared<const Callable>(
                                     Callable{Callable::Kind::macro, s.macro->name, {}, s.macro.get()})));
        return Flow::on;
      case Stmt::Kind::call:
        write(str_of(call_block(s, scope), work_));
        return Flow::on;
      case Stmt::Kind::generation:
        return generation(s, scope);
      case Stmt::Kind::break_:
        return Flow::break_;
      case Stmt::Kind::continue_:
        return Flow::continue_;
    }
    return Flow::on;
  }
  void write(std::string_view text) {
    work_.move(text.size());
    if (out_->size() + text.size() > kMostText) work_.move(out_->size() + text.size());
    *out_ += text;
  }
  // Output of `body`, run in a new scope.
  std::string written(const Body& body, Scope& outer) {
    std::string text;
    std::string* const before = std::exchange(out_, &text);
    Scope scope{&outer};
    run(body, scope);
    out_ = before;
    return text;
  }
  // Text and spans are those of the whole text, as the reference counts them, even where the block writes
  // into a text that is used later.
  Flow generation(const Stmt& s, Scope& scope) {
    const std::string text = written(s.body, scope);
    result_.generated.push_back({result_.text.size(), result_.text.size() + text.size()});
    write(text);
    return Flow::on;
  }
  Value set_block(const Stmt& s, Scope& scope) {
    Value v(written(s.body, scope));
    for (const ExprPtr& f : s.filters) v = filtered(f->name, v, arguments(*f, scope), work_);
    return v;
  }
  void bind(const std::vector<std::string>& names, Value v, Scope& scope) {
    if (names.size() == 1) return scope.set(names[0], std::move(v));
    const std::vector<Value> parts = items_of(v, work_);
    if (parts.size() != names.size()) work_.fail("{} values for {} names", parts.size(), names.size());
    for (size_t i = 0; i < names.size(); i++) scope.set(names[i], parts[i]);
  }
  void set(const Stmt& s, Scope& scope) {
    Value v = eval(*s.expr, scope);
    if (s.text.empty()) return bind(s.names, std::move(v), scope);
    Namespace* space = lookup(s.text, scope).name_space();
    if (!space) work_.fail("{}.{} cannot be set: {} is not a namespace", s.text, s.names[0], s.text);
    set_in(*space, s.names[0], std::move(v));
  }
  static void set_in(Namespace& space, const std::string& name, Value v) {
    for (auto& [known, value] : space.entries)
      if (known == name) {
        value = std::move(v);
        return;
      }
    space.entries.emplace_back(name, std::move(v));
  }
  Flow loop(const Stmt& s, Scope& outer) {
    std::vector<Value> items = items_of(eval(*s.expr, outer), work_);
    if (s.condition) {
      std::vector<Value> kept;
      for (Value& item : items) {
        Scope scope{&outer};
        bind(s.names, item, scope);
        if (true_of(*s.condition, scope)) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    const size_t n = items.size();
    const Value all = Value::list(std::move(items), work_);
    for (size_t i = 0; i < n; i++) {
      work_.step();
      Scope scope{&outer};
      loops_++;
      scope.set("loop", Value(std::make_shared<const Loop>(Loop{all, int64_t(i), loops_})));
      bind(s.names, all.sequence()->items[i], scope);
      const Flow flow = run(s.body, scope);
      loops_--;
      if (flow == Flow::break_) return Flow::on;
    }
    return n == 0 ? run(s.otherwise, outer) : Flow::on;
  }

  // ---- expressions ----
  Value lookup(const std::string& name, const Scope& scope) {
    for (const Scope* s = &scope; s; s = s->outer)
      if (const Value* v = find(s->names, name)) return *v;
    if (std::find(std::begin(kGlobals), std::end(kGlobals), name) != std::end(kGlobals))
      return Value(std::make_shared<const Callable>(Callable{Callable::Kind::global, name}));
    return Value::undefined(name);
  }
  Arguments arguments(const Expr& e, Scope& scope) {
    Arguments a;
    for (size_t i = 1; i < e.args.size(); i++) {
      const Expr& one = *e.args[i];
      if (one.kind != Expr::Kind::spread) {
        a.values.push_back(eval(one, scope));
        continue;
      }
      for (Value& v : items_of(eval(*one.args[0], scope), work_)) a.values.push_back(std::move(v));
    }
    for (const auto& [name, value] : e.named) {
      const Value v = eval(*value, scope);
      if (name != "**") {
        add_named(a, name, v);
        continue;
      }
      if (!v.mapping()) work_.fail("** of {}, not of a dict", kind_name(v));
      for (const auto& [key, entry] : v.mapping()->entries) add_named(a, key, entry);
    }
    return a;
  }
  void add_named(Arguments& a, const std::string& name, Value v) {
    work_.step();
    if (find(a.named, name)) work_.fail("two arguments with the name {}", name);
    a.named.emplace_back(name, std::move(v));
  }
  std::vector<Value> all(const Expr& e, Scope& scope) {
    std::vector<Value> out;
    for (const ExprPtr& a : e.args) out.push_back(eval(*a, scope));
    return out;
  }
  Value bound(const ExprPtr& e, Scope& scope) { return e ? eval(*e, scope) : Value(None()); }

  Value eval(const Expr& e, Scope& scope) {
    const Deeper deeper(*this);
    work_.line = e.line;
    work_.step();
    switch (e.kind) {
      case Expr::Kind::literal:
        return e.value;
      case Expr::Kind::name:
        return lookup(e.name, scope);
      case Expr::Kind::tuple:
      case Expr::Kind::list:
        return Value::list(all(e, scope), work_, e.kind == Expr::Kind::tuple);
      case Expr::Kind::dict:
        return dict(e, scope);
      case Expr::Kind::attribute:
        return attribute_of(eval(*e.args[0], scope), e.name, work_);
      case Expr::Kind::item:
        return item(e, scope);
      case Expr::Kind::slice:
        return slice(e, scope);
      case Expr::Kind::call:
        return call(e, scope);
      case Expr::Kind::spread:
        break;  // arguments() takes it apart
      case Expr::Kind::filter:
        return filter(e, scope);
      case Expr::Kind::test:
        return test(e, scope);
      case Expr::Kind::unary:
        return unary(e, scope);
      case Expr::Kind::binary:
        return binary(e, scope);
      case Expr::Kind::concat:
        return concat(e, scope);
      case Expr::Kind::logical:
        return logical(e, scope);
      case Expr::Kind::compare:
        return compare(e, scope);
      case Expr::Kind::choose:
        return choose(e, scope);
    }
    return {};
  }
  bool true_of(const Expr& e, Scope& scope) {
    const Value v = eval(e, scope);
    check_defined(v, work_);
    return truth(v);
  }
  Value item(const Expr& e, Scope& scope) {
    const Value of = eval(*e.args[0], scope);
    return item_of(of, eval(*e.args[1], scope), work_);
  }
  Value slice(const Expr& e, Scope& scope) {
    const Value of = eval(*e.args[0], scope), begin = bound(e.args[1], scope), end = bound(e.args[2], scope);
    return slice_of(of, begin, end, bound(e.args[3], scope), work_);
  }
  Value filter(const Expr& e, Scope& scope) {
    const Value of = eval(*e.args[0], scope);
    const Arguments a = arguments(e, scope);
    work_.line = e.line;
    if (e.name != "default" && e.name != "d") check_defined(of, work_);
    return filtered(e.name, of, a, work_);
  }
  Value test(const Expr& e, Scope& scope) {
    const Value of = eval(*e.args[0], scope);
    return passes(e.name, of, arguments(e, scope), work_);
  }
  Value dict(const Expr& e, Scope& scope) {
    Entries entries;
    for (size_t i = 0; i < e.args.size(); i += 2) {
      const Value key = eval(*e.args[i], scope);
      if (!key.text()) work_.fail("a key of kind {} is not supported", kind_name(key));
      put(entries, *key.text(), eval(*e.args[i + 1], scope));
    }
    return Value::dict(std::move(entries), work_);
  }
  static void put(Entries& entries, const std::string& key, Value v) {
    for (auto& [known, value] : entries)
      if (known == key) {
        value = std::move(v);
        return;
      }
    entries.emplace_back(key, std::move(v));
  }
  Value logical(const Expr& e, Scope& scope) {
    Value left = eval(*e.args[0], scope);
    check_defined(left, work_);
    return truth(left) == (e.ops[0] == "or") ? left : eval(*e.args[1], scope);
  }
  Value choose(const Expr& e, Scope& scope) {
    if (true_of(*e.args[1], scope)) return eval(*e.args[0], scope);
    return e.args[2] ? eval(*e.args[2], scope) : Value::undefined("the missing else of an if expression");
  }
  Value concat(const Expr& e, Scope& scope) {
    std::string text;
    for (const ExprPtr& a : e.args) {
      text += str_of(eval(*a, scope), work_);
      if (text.size() > kMostText) work_.move(text.size());
    }
    work_.move(text.size());
    return text;
  }
  Value compare(const Expr& e, Scope& scope) {
    Value left = eval(*e.args[0], scope);
    for (size_t i = 0; i < e.ops.size(); i++) {
      Value right = eval(*e.args[i + 1], scope);
      work_.line = e.line;
      if (!holds(e.ops[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }
  bool holds(const std::string& op, const Value& a, const Value& b) {
    if (op == "in" || op == "not in") return contains(b, a, work_) == (op == "in");
    return passes(op, a, {{b}, {}}, work_);
  }

  Value unary(const Expr& e, Scope& scope) {
    const Value v = eval(*e.args[0], scope);
    check_defined(v, work_);
    if (e.ops[0] == "not") return !truth(v);
    if (!v.is_number()) work_.fail("{} of {} is not supported", e.ops[0], kind_name(v));
    if (std::holds_alternative<double>(v.data())) return e.ops[0] == "-" ? -v.number() : v.number();
    return e.ops[0] == "-" ? int64_t(0 - uint64_t(v.integer())) : v.integer();
  }
  Value binary(const Expr& e, Scope& scope) {
    const Value a = eval(*e.args[0], scope), b = eval(*e.args[1], scope);
    work_.line = e.line;
    const char op = e.ops[0] == "//" ? 'f' : e.ops[0] == "**" ? 'p' : e.ops[0][0];
    if (op == '+' && a.text() && b.text()) {
      work_.move(a.text()->size() + b.text()->size());
      return *a.text() + *b.text();
    }
    if (op == '+' && a.sequence() && b.sequence() && a.sequence()->tuple == b.sequence()->tuple) {
      std::vector<Value> both = items_of(a, work_);
      const std::vector<Value> more = items_of(b, work_);
      both.insert(both.end(), more.begin(), more.end());
      return Value::list(std::move(both), work_, a.sequence()->tuple);
    }
    if (op == '*' && a.text() && (b.is_integer() || b.is_boolean())) return repeated(*a.text(), b.integer());
    for (const Value* v : {&a, &b})
      if (v->is_undefined()) work_.fail("{:?} is undefined", std::get<Undefined>(v->data()).name);
    if (op == '%' && a.text()) work_.fail("a text % values is not supported");
    if (!a.is_number() || !b.is_number())
      work_.fail("{} of {} and {} is not supported", e.ops[0], kind_name(a), kind_name(b));
    const bool real = std::holds_alternative<double>(a.data()) || std::holds_alternative<double>(b.data());
    return real || op == '/' || op == 'p' ? of_reals(op, a, b) : of_integers(op, a.integer(), b.integer());
  }
  Value repeated(const std::string& text, int64_t times) {
    std::string out;
    if (times > 0 && !text.empty() && size_t(times) > kMostText / text.size()) work_.move(kMostText + 1);
    for (int64_t i = 0; i < times && !text.empty(); i++) out += text;
    work_.move(out.size());
    return out;
  }
  Value of_integers(char op, int64_t a, int64_t b) {
    int64_t c = 0;
    const bool beyond = op == '+'   ? __builtin_add_overflow(a, b, &c)
                        : op == '-' ? __builtin_sub_overflow(a, b, &c)
                        : op == '*' ? __builtin_mul_overflow(a, b, &c)
                                    : false;
    if (beyond) work_.fail("{} {} {} is beyond 64 bits", a, op, b);
    if (op == '+' || op == '-' || op == '*') return c;
    if (b == 0) work_.fail("a division by zero");
    if (b == -1) return op == '%' ? int64_t(0) : int64_t(0 - uint64_t(a));
    const bool down = a % b != 0 && (a < 0) != (b < 0);  // Python rounds quotients down
    return op == '%' ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0);
  }
  Value of_reals(char op, const Value& left, const Value& right) {
    const double a = left.number(), b = right.number();
    if (op == '+') return a + b;
    if (op == '-') return a - b;
    if (op == '*') return a * b;
    if (op == 'p') {
      const double power = std::pow(a, b);
      const bool whole = left.is_integer() && right.is_integer() && b >= 0;
      if (whole && std::fabs(power) < 9007199254740992.0) return int64_t(power);
      if (whole) work_.fail("{} ** {} is beyond 53 bits", a, b);
      return power;
    }
    if (b == 0) work_.fail("a division by zero");
    if (op == '/') return a / b;
    if (op == 'f') return std::floor(a / b);
    const double rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }

  // ---- calls ----
  // {% call %}: its body is a function `caller` for the macro that is called. It sees the names at its place,
  // and lives no longer than the call.
  Value call_block(const Stmt& s, Scope& scope) {
    const int64_t number = next_caller_++;
    callers_.push_back({number, s.macro.get(), &scope});
    const Value caller(std::make_shared<const Callable>(
        Callable{Callable::Kind::caller, s.macro->name, Value(number), s.macro.get()}));
    Value out = call(*s.expr, scope, &caller);
    callers_.pop_back();
    return out;
  }
  Value call_caller(const Callable& c, const Arguments& a) {
    const auto at = std::find_if(callers_.begin(), callers_.end(),
                                 [&](const Caller& one) { return one.number == c.self.integer(); });
    if (at == callers_.end()) work_.fail("caller() after the end of its {{% call %}}");
    return call_macro(*at->macro, a, *at->scope);
  }
  Value call(const Expr& e, Scope& scope, const Value* caller = nullptr) {
    const Value callee = eval(*e.args[0], scope);
    Arguments a = arguments(e, scope);
    if (caller) add_named(a, "caller", *caller);
    work_.line = e.line;
    if (callee.is_undefined()) work_.fail("{:?} is undefined", std::get<Undefined>(callee.data()).name);
    const Callable* c = callee.callable();
    if (!c) work_.fail("{} cannot be called", kind_name(callee));
    if (c->kind == Callable::Kind::method) return call_method(c->self, c->name, a, work_);
    if (c->kind == Callable::Kind::caller) return call_caller(*c, a);
    return c->kind == Callable::Kind::macro ? call_macro(*c->macro, a, root_) : call_global(c->name, a);
  }
  Value call_macro(const Macro& m, const Arguments& a, Scope& outer) {
    const Deeper deeper(*this);
    if (a.values.size() > m.parameters.size())
      work_.fail("macro {}: {} arguments for {} parameters", m.name, a.values.size(), m.parameters.size());
    Scope scope{&outer};
    for (const auto& [name, value] : a.named) {
      if (std::any_of(m.parameters.begin(), m.parameters.end(),
                      [&](const auto& p) { return p.first == name; }))
        continue;
      if (name != "caller" || !m.calls_caller) work_.fail("macro {}: no parameter {:?}", m.name, name);
      scope.set(name, value);
    }
    for (size_t i = 0; i < m.parameters.size(); i++) {
      const auto& [name, otherwise] = m.parameters[i];
      const Value* given = a.get(i, name);
      scope.set(name, given ? *given : otherwise ? eval(*otherwise, scope) : Value::undefined(name));
    }
    return written(m.body, scope);
  }
  Value call_global(const std::string& name, const Arguments& a) {
    if (name == "raise_exception") {
      a.bind(name, {"message"}, 1, work_);
      work_.fail("the template rejects the conversation: {}", str_of(*a.get(0, "message"), work_));
    }
    if (name == "strftime_now") {
      a.bind(name, {"format"}, 1, work_);
      return time_text(text_of(*a.get(0, "format"), name, work_));
    }
    if (name == "range") return range(a);
    if (!a.values.empty()) work_.fail("{}() of values without names is not supported", name);
    Entries entries;
    for (const auto& [key, value] : a.named) put(entries, key, value);
    if (name == "dict") return Value::dict(std::move(entries), work_);
    spaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(entries)}));
    return Value(spaces_.back().get());
  }
  Value range(const Arguments& a) {
    a.bind("range()", {"start", "stop", "step"}, 1, work_);
    std::array<int64_t, 3> n = {0, 0, 1};
    for (size_t i = 0; i < a.values.size(); i++) n[i] = integer_of(a.values[i], "range()", work_);
    if (a.values.size() == 1) std::swap(n[0], n[1]);
    if (n[2] == 0) work_.fail("range() with step 0");
    std::vector<Value> out;
    for (int64_t i = n[0]; n[2] > 0 ? i < n[1] : i > n[1];) {
      if (int64_t(out.size()) >= kMostRange) work_.fail("range() of more than {} numbers", kMostRange);
      out.emplace_back(i);
      if (__builtin_add_overflow(i, n[2], &i)) break;
    }
    return Value::list(std::move(out), work_);
  }
  Value time_text(const std::string& format) {
    constexpr size_t kLongest = 200;
    const time_t seconds = time_t(now_);
    tm parts{};
    if (format.size() > kLongest || format.find('\0') != std::string::npos || !localtime_r(&seconds, &parts))
      work_.fail("strftime_now of this format is not supported");
    std::array<char, 64 * kLongest> text{};
    return std::string(text.data(), strftime(text.data(), text.size(), format.c_str(), &parts));
  }

  Work& work_;
  const int64_t now_;
  Scope root_;
  Rendered result_;
  std::string* out_ = nullptr;
  std::vector<std::unique_ptr<Namespace>> spaces_;
  struct Caller {
    int64_t number;
    const Macro* macro;
    Scope* scope;
  };
  std::vector<Caller> callers_;  // the running calls
  int64_t next_caller_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

Rendered render(const Body& body, Entries variables, int64_t now, Work& work) {
  return Interpreter(std::move(variables), now, work).run(body);
}

}  // namespace trireme::jinja
