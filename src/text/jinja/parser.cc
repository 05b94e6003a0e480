// A parser by recursive descent, with Jinja's precedences: from the loosest, `a if b else c`, or, and, not,
// comparisons, + -, ~, * / // %, **, unary, then subscripts, calls, filters and tests.
#include <algorithm>
#include <string_view>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace trireme::jinja {
namespace {

using Kind = Token::Kind;
using E = Expr::Kind;
using S = Stmt::Kind;

class Parser {
 public:
  Parser(std::string_view source, Work& work, Whitespace whitespace)
      : tokens_(tokens_of(source, work, whitespace)), work_(work) {}

  Body run() {
    Body body = statements({});
    return body;
  }

 private:
  // ---- tokens ----
  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() {
    work_.line = now().line;
    Token t = now();
    if (at_ + 1 < tokens_.size()) at_++;
    return t;
  }
  static bool is(const Token& t, Kind kind, std::string_view text) {
    return t.kind == kind && t.text == text;
  }
  bool at_op(std::string_view op) const { return is(now(), Kind::op, op); }
  bool at_name(std::string_view name) const { return is(now(), Kind::name, name); }
  bool skip_op(std::string_view op) { return at_op(op) && (take(), true); }
  bool skip_name(std::string_view name) { return at_name(name) && (take(), true); }
  static std::string shown(const Token& t) {
    switch (t.kind) {
      case Kind::end:
        return "the end of the template";
      case Kind::block_end:
        return "%}";
      case Kind::print_end:
        return "}}";
      case Kind::data:
        return "text";
      default:
        return fmt::format("{:?}", t.text);
    }
  }
  [[noreturn]] void unexpected(std::string_view wanted) {
    work_.line = now().line;
    work_.fail("expected {}, found {}", wanted, shown(now()));
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) unexpected(fmt::format("{:?}", op));
  }
  std::string expect_name() {
    if (now().kind != Kind::name) unexpected("a name");
    return take().text;
  }
  void expect_block_end() {
    if (now().kind != Kind::block_end) unexpected("%}");
    take();
  }

  // ---- statements ----
  struct Deeper {
    explicit Deeper(Parser& p) : parser(p) {
      if (++parser.depth_ > kMostSyntax) parser.work_.fail("nests deeper than {}", kMostSyntax);
    }
    ~Deeper() { parser.depth_--; }
    Parser& parser;
  };

  // Up to one of the tags `until`, whose name is the current token then; without tags, to the end.
  Body statements(std::initializer_list<std::string_view> until) {
    const Deeper deeper(*this);
    Body body;
    for (;;) {
      const Token t = now();
      if (t.kind == Kind::end) {
        if (until.size() > 0) unexpected(fmt::format("{{% {} %}}", *(until.end() - 1)));
        return body;
      }
      take();
      if (t.kind == Kind::data) {
        body.push_back(make(S::data, t.line));
        body.back()->text = t.text;
      } else if (t.kind == Kind::print) {
        body.push_back(make(S::print, t.line));
        body.back()->expr = tuple(false);
        if (now().kind != Kind::print_end) unexpected("}}");
        take();
      } else {
        require(t.kind == Kind::block, "a token outside tags is text or begins a tag");
        if (now().kind == Kind::name && std::find(until.begin(), until.end(), now().text) != until.end())
          return body;
        body.push_back(statement());
      }
    }
  }
  static std::unique_ptr<Stmt> make(S kind, int line) {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = line;
    return s;
  }
  std::unique_ptr<Stmt> statement() {
    const int line = now().line;
    const std::string tag = expect_name();
    if (tag == "if") return if_statement(line);
    if (tag == "for") return for_statement(line);
    if (tag == "set") return set_statement(line);
    if (tag == "macro") return macro_statement(line);
    if (tag == "call") return call_statement(line);
    if (tag == "generation") {
      auto s = make(S::generation, line);
      expect_block_end();
      s->body = block_until("endgeneration");
      return s;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) work_.fail("{{% {} %}} outside of a loop", tag);
      expect_block_end();
      return make(tag == "break" ? S::break_ : S::continue_, line);
    }
    work_.fail("{{% {} %}} is not supported", tag);
  }
  Body block_until(std::string_view end) {
    Body body = statements({end});
    take();
    expect_block_end();
    return body;
  }

  std::unique_ptr<Stmt> if_statement(int line) {
    auto s = make(S::if_, line);
    ExprPtr condition = tuple(false);
    for (bool last = false;;) {
      expect_block_end();
      Body body = last ? statements({"endif"}) : statements({"elif", "else", "endif"});
      s->branches.emplace_back(std::move(condition), std::move(body));
      const std::string tag = take().text;
      if (tag == "endif") break;
      condition = tag == "elif" ? tuple(false) : nullptr;
      last = tag == "else";
    }
    expect_block_end();
    return s;
  }

  // "a", or "a, b" with or without brackets.
  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool brackets = skip_op("(");
    do {
      if (brackets && at_op(")")) break;
      names.push_back(expect_name());
    } while (skip_op(","));
    if (brackets) expect_op(")");
    return names;
  }

  std::unique_ptr<Stmt> for_statement(int line) {
    auto s = make(S::for_, line);
    s->names = targets();
    if (!skip_name("in")) unexpected("\"in\"");
    s->expr = tuple(false, false);
    if (skip_name("if")) s->condition = expression();
    if (at_name("recursive")) work_.fail("a recursive loop is not supported");
    expect_block_end();
    loops_++;
    s->body = statements({"else", "endfor"});
    loops_--;
    if (take().text == "else") {
      expect_block_end();
      s->otherwise = statements({"endfor"});
      take();
    }
    expect_block_end();
    return s;
  }

  std::unique_ptr<Stmt> set_statement(int line) {
    auto s = make(S::set, line);
    if (is(after(), Kind::op, ".")) {
      s->text = expect_name();
      take();
      s->names = {expect_name()};
    } else {
      s->names = targets();
    }
    if (skip_op("=")) {
      s->expr = tuple(false);
      expect_block_end();
      return s;
    }
    s->kind = S::set_block;
    if (!s->text.empty() || s->names.size() != 1) work_.fail("{{% set %}} of a block wants one name");
    while (skip_op("|")) s->filters.push_back(filter(nullptr));
    expect_block_end();
    s->body = block_until("endset");
    return s;
  }

  std::unique_ptr<Stmt> macro_statement(int line) {
    if (loops_ > 0 || in_macro_) work_.fail("a macro inside of a loop or a macro is not supported");
    auto s = make(S::macro, line);
    s->macro = std::make_unique<Macro>();
    s->macro->name = expect_name();
    parameters(*s->macro);
    expect_block_end();
    in_macro_ = s->macro.get();
    s->macro->body = block_until("endmacro");
    in_macro_ = nullptr;
    return s;
  }
  void parameters(Macro& m) {
    expect_op("(");
    while (!at_op(")")) {
      if (!m.parameters.empty()) expect_op(",");
      std::string name = expect_name();
      ExprPtr otherwise = skip_op("=") ? expression() : nullptr;
      if (!otherwise && !m.parameters.empty() && m.parameters.back().second)
        work_.fail("a parameter without default follows one with it");
      m.parameters.emplace_back(std::move(name), std::move(otherwise));
    }
    take();
  }
  std::unique_ptr<Stmt> call_statement(int line) {
    auto s = make(S::call, line);
    s->macro = std::make_unique<Macro>();
    s->macro->name = "caller";
    if (at_op("(")) parameters(*s->macro);
    s->expr = expression();
    if (s->expr->kind != E::call) work_.fail("{{% call %}} wants a call");
    expect_block_end();
    const int loops = std::exchange(loops_, 0);
    s->macro->body = block_until("endcall");
    loops_ = loops;
    return s;
  }

  // ---- expressions ----
  ExprPtr node(E kind, int line) {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = line;
    return e;
  }
  ExprPtr with(ExprPtr e, ExprPtr arg) {
    if (arg && (e->depth = std::max(e->depth, arg->depth + 1)) > kMostSyntax)
      work_.fail("an expression nests deeper than {}", kMostSyntax);
    e->args.push_back(std::move(arg));
    return e;
  }
  ExprPtr two(E kind, int line, std::string op, ExprPtr a, ExprPtr b) {
    ExprPtr e = node(kind, line);
    e->ops.push_back(std::move(op));
    return with(with(std::move(e), std::move(a)), std::move(b));
  }

  // One expression, or a tuple of several without brackets.
  ExprPtr tuple(bool brackets, bool conditional = true) {
    const int line = now().line;
    if (brackets && at_op(")")) return node(E::tuple, line);
    ExprPtr first = conditional ? expression() : logical_or();
    if (!at_op(",")) return first;
    ExprPtr all = with(node(E::tuple, line), std::move(first));
    while (skip_op(",")) {
      const Kind kind = now().kind;
      if (kind == Kind::block_end || kind == Kind::print_end || at_op(")")) break;
      all = with(std::move(all), conditional ? expression() : logical_or());
    }
    return all;
  }
  ExprPtr expression() {
    const Deeper deeper(*this);
    const int line = now().line;
    ExprPtr value = logical_or();
    while (skip_name("if")) {
      ExprPtr condition = logical_or();
      ExprPtr otherwise = skip_name("else") ? expression() : nullptr;
      ExprPtr all = with(with(node(E::choose, line), std::move(value)), std::move(condition));
      value = with(std::move(all), std::move(otherwise));
    }
    return value;
  }
  ExprPtr logical_or() {
    ExprPtr left = logical_and();
    while (at_name("or")) {
      const int line = take().line;
      ExprPtr right = logical_and();
      left = two(E::logical, line, "or", std::move(left), std::move(right));
    }
    return left;
  }
  ExprPtr logical_and() {
    ExprPtr left = logical_not();
    while (at_name("and")) {
      const int line = take().line;
      ExprPtr right = logical_not();
      left = two(E::logical, line, "and", std::move(left), std::move(right));
    }
    return left;
  }
  ExprPtr logical_not() {
    if (!at_name("not")) return compare();
    const Deeper deeper(*this);
    ExprPtr e = node(E::unary, take().line);
    e->ops = {"not"};
    return with(std::move(e), logical_not());
  }
  std::string comparison() {
    static constexpr std::string_view kOps[] = {"==", "!=", ">=", "<=", ">", "<"};
    for (std::string_view op : kOps)
      if (skip_op(op)) return std::string(op);
    if (skip_name("in")) return "in";
    if (at_name("not") && is(after(), Kind::name, "in")) {
      take(), take();
      return "not in";
    }
    return "";
  }
  ExprPtr compare() {
    const int line = now().line;
    ExprPtr first = sum();
    std::string op = comparison();
    if (op.empty()) return first;
    ExprPtr all = with(node(E::compare, line), std::move(first));
    for (; !op.empty(); op = comparison()) {
      all->ops.push_back(op);
      all = with(std::move(all), sum());
    }
    return all;
  }
  template <class Next>
  ExprPtr chain(std::initializer_list<std::string_view> ops, Next&& next) {
    ExprPtr left = next();
    for (;;) {
      const auto op = std::find_if(ops.begin(), ops.end(), [&](std::string_view o) { return at_op(o); });
      if (op == ops.end()) return left;
      const int line = take().line;
      ExprPtr right = next();
      left = two(E::binary, line, std::string(*op), std::move(left), std::move(right));
    }
  }
  ExprPtr sum() {
    return chain({"+", "-"}, [&] { return concat(); });
  }
  ExprPtr concat() {
    const int line = now().line;
    ExprPtr first = product();
    if (!at_op("~")) return first;
    ExprPtr all = with(node(E::concat, line), std::move(first));
    while (skip_op("~")) all = with(std::move(all), product());
    return all;
  }
  ExprPtr product() {
    return chain({"*", "//", "/", "%"}, [&] { return chain({"**"}, [&] { return unary(true); }); });
  }
  ExprPtr unary(bool with_filter) {
    ExprPtr e;
    if (at_op("-") || at_op("+")) {
      const Deeper deeper(*this);
      const Token op = take();
      e = node(E::unary, op.line);
      e->ops = {op.text};
      e = with(std::move(e), unary(false));
    } else {
      e = primary();
    }
    e = postfix(std::move(e));
    if (!with_filter) return e;
    for (;;) {
      if (skip_op("|"))
        e = filter(std::move(e));
      else if (skip_name("is"))
        e = test(std::move(e));
      else if (at_op("("))
        e = call(std::move(e));
      else
        return e;
    }
  }
  ExprPtr literal(Value v, int line) {
    ExprPtr e = node(E::literal, line);
    e->value = std::move(v);
    return e;
  }
  ExprPtr primary() {
    const Deeper deeper(*this);
    const Token t = now();
    if (t.kind == Kind::name) {
      take();
      if (t.text == "true" || t.text == "True") return literal(true, t.line);
      if (t.text == "false" || t.text == "False") return literal(false, t.line);
      if (t.text == "none" || t.text == "None") return literal(None(), t.line);
      if (t.text == "caller" && in_macro_) in_macro_->calls_caller = true;
      ExprPtr e = node(E::name, t.line);
      e->name = t.text;
      return e;
    }
    if (t.kind == Kind::text) {
      std::string text;
      while (now().kind == Kind::text) text += take().text;
      return literal(std::move(text), t.line);
    }
    if (t.kind == Kind::number) return take(), literal(t.number, t.line);
    if (skip_op("(")) {
      ExprPtr e = tuple(true);
      expect_op(")");
      return e;
    }
    if (skip_op("[")) {
      ExprPtr e = node(E::list, t.line);
      while (!skip_op("]")) {
        if (!e->args.empty()) expect_op(",");
        if (!at_op("]")) e = with(std::move(e), expression());
      }
      return e;
    }
    if (skip_op("{")) return dict(t.line);
    unexpected("an expression");
  }
  ExprPtr dict(int line) {
    ExprPtr e = node(E::dict, line);
    while (!skip_op("}")) {
      if (!e->args.empty()) expect_op(",");
      if (at_op("}")) continue;
      e = with(std::move(e), expression());
      expect_op(":");
      e = with(std::move(e), expression());
    }
    return e;
  }
  ExprPtr postfix(ExprPtr e) {
    for (;;) {
      if (at_op(".")) {
        const int line = take().line;
        if (now().kind == Kind::number && now().number.is_integer()) {
          e = with(with(node(E::item, line), std::move(e)), literal(now().number, line));
          take();
          continue;
        }
        ExprPtr a = node(E::attribute, line);
        a->name = expect_name();
        e = with(std::move(a), std::move(e));
      } else if (at_op("[")) {
        e = subscript(std::move(e));
      } else if (at_op("(")) {
        e = call(std::move(e));
      } else {
        return e;
      }
    }
  }
  ExprPtr subscript(ExprPtr of) {
    const int line = take().line;
    ExprPtr begin = at_op(":") ? nullptr : expression();
    if (!at_op(":")) {
      if (at_op(",")) work_.fail("a subscript of several indices is not supported");
      expect_op("]");
      return with(with(node(E::item, line), std::move(of)), std::move(begin));
    }
    ExprPtr e = with(with(node(E::slice, line), std::move(of)), std::move(begin));
    for (int bound = 0; bound < 2; bound++) {
      const bool given = skip_op(":") && !at_op(":") && !at_op("]");
      e = with(std::move(e), given ? expression() : nullptr);
    }
    expect_op("]");
    return e;
  }
  // "(a, b, c=d)", added to the arguments of e.
  ExprPtr arguments(ExprPtr e) {
    expect_op("(");
    bool first = true;
    while (!skip_op(")")) {
      if (!first) {
        expect_op(",");
        if (skip_op(")")) break;
      }
      first = false;
      if (!e->named.empty() && e->named.back().first == "**") unexpected("\")\"");
      const int line = now().line;
      const bool names = now().kind == Kind::name && is(after(), Kind::op, "=");
      if (names || at_op("**")) {
        std::string name = take().text;
        if (names) take();
        ExprPtr value = expression();
        e->depth = std::max(e->depth, value->depth + 1);
        e->named.emplace_back(std::move(name), std::move(value));
        continue;
      }
      const bool spreads = skip_op("*"), after_spread = e->args.back() && e->args.back()->kind == E::spread;
      if (after_spread || (!spreads && !e->named.empty())) unexpected("a named argument");
      ExprPtr value = expression();
      e = with(std::move(e), spreads ? with(node(E::spread, line), std::move(value)) : std::move(value));
    }
    return e;
  }
  ExprPtr call(ExprPtr callee) { return arguments(with(node(E::call, now().line), std::move(callee))); }
  ExprPtr filter(ExprPtr of) {
    ExprPtr e = node(E::filter, now().line);
    e->name = expect_name();
    while (skip_op(".")) e->name += "." + expect_name();
    if (!is_filter(e->name)) work_.fail("the filter {:?} is not supported", e->name);
    e = with(std::move(e), std::move(of));
    return at_op("(") ? arguments(std::move(e)) : std::move(e);
  }
  ExprPtr test(ExprPtr of) {
    const int line = now().line;
    const bool negated = skip_name("not");
    ExprPtr e = node(E::test, line);
    e->name = expect_name();
    if (!is_test(e->name)) work_.fail("the test {:?} is not supported", e->name);
    e = with(std::move(e), std::move(of));
    const Token& t = now();
    const bool argument = t.kind == Kind::text || t.kind == Kind::number || at_op("[") || at_op("{") ||
                          (t.kind == Kind::name && t.text != "else" && t.text != "or" && t.text != "and" &&
                           t.text != "is" && t.text != "if" && t.text != "in" && t.text != "not");
    if (at_op("("))
      e = arguments(std::move(e));
    else if (argument)
      e = with(std::move(e), postfix(primary()));
    if (!negated) return e;
    ExprPtr not_e = node(E::unary, line);
    not_e->ops = {"not"};
    return with(std::move(not_e), std::move(e));
  }

  std::vector<Token> tokens_;
  Work& work_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  Macro* in_macro_ = nullptr;
};

}  // namespace

Body parse(std::string_view source, Work& work, Whitespace whitespace) {
  return Parser(source, work, whitespace).run();
}

bool has(const Body& body, Stmt::Kind kind) {
  return std::any_of(body.begin(), body.end(), [&](const std::unique_ptr<Stmt>& s) {
    const bool in_branches = std::any_of(s->branches.begin(), s->branches.end(),
                                         [&](const auto& branch) { return has(branch.second, kind); });
    return s->kind == kind || in_branches || has(s->body, kind) || has(s->otherwise, kind) ||
           (s->macro && has(s->macro->body, kind));
  });
}

}  // namespace trireme::jinja
