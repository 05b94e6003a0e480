// The syntax tree of a template.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"
#include "text/jinja/whitespace.h"

namespace trireme::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
struct Expr {
  enum class Kind : uint8_t {
    literal,    // value
    name,       // name
    tuple,      // args
    list,       // args
    dict,       // args: key, value, key, value, ...
    attribute,  // args[0].name
    item,       // args[0][args[1]]
    slice,      // args[0][args[1]:args[2]:args[3]]; each bound may be null
    call,       // args[0](args[1...], named)
    spread,     // *args[0], an argument of a call
    filter,     // args[0] | name(args[1...], named)
    test,       // args[0] is name(args[1...])
    unary,      // ops[0] of args[0]: - + not
    binary,     // args[0] ops[0] args[1]: + - * / // % **
    concat,     // args joined by ~
    logical,    // args[0] ops[0] args[1]: and or
    compare,    // args[0] ops[0] args[1] ops[1] args[2] ...
    choose,     // args[0] if args[1] else args[2], which may be null
  };
  Kind kind = Kind::literal;
  int line = 1;
  int depth = 1;
  std::string name = {};
  Value value = {};
  std::vector<ExprPtr> args = {};
  std::vector<std::pair<std::string, ExprPtr>> named = {};  // name "**": all entries of a dict
  std::vector<std::string> ops = {};
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;
struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // a null default: none
  Body body;
  bool calls_caller = false;  // its body names `caller`
};
struct Stmt {
  enum class Kind : uint8_t {
    data,       // text
    print,      // expr
    if_,        // branches of (condition, body); a null condition is `else`
    for_,       // names in expr, if condition: body; otherwise
    set,        // names = expr; or text.names[0] = expr of a namespace
    set_block,  // names[0] = body through filters
    macro,
    call,        // expr, a call; `macro` is its caller()
    generation,  // body
    break_,
    continue_,
  };
  Kind kind = Kind::data;
  int line = 1;
  std::string text = {};
  std::vector<std::string> names = {};
  ExprPtr expr = {}, condition = {};
  Body body = {}, otherwise = {};
  std::vector<std::pair<ExprPtr, Body>> branches = {};
  std::vector<ExprPtr> filters = {};  // set_block's filters, each with a null args[0]
  std::unique_ptr<Macro> macro = {};
};

// Parses a template. Fails, naming line and construct, for what is not supported.
Body parse(std::string_view source, Work&, Whitespace = Whitespace::trimmed);
// Whether a statement of the kind is in it, at any depth.
bool has(const Body&, Stmt::Kind);

// Filters and tests that there are: the parser rejects others by name.
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

}  // namespace trireme::jinja
