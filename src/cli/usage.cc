#include "cli/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/error.h"
#include "base/visible.h"
#include "spec/suggest.h"

namespace trireme::cli {
namespace {

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* v : app.get_subcommands([](const CLI::App*) { return true; }))
    verbs.push_back(v->get_name());
  return verbs;
}

// The verb that was being read when the error came; the program itself before there was one.
const CLI::App* verb_of(const CLI::App& app) {
  const CLI::App* at = &app;
  for (auto parsed = at->get_subcommands(); !parsed.empty(); parsed = at->get_subcommands())
    at = parsed.front();
  return at;
}

std::string name_of(const CLI::Option& o) {
  return o.nonpositional() ? "--" + o.get_lnames().front() : o.get_name(true);
}

std::vector<std::string> options_of(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* o : verb.get_options())
    for (const std::string& n : o->get_lnames()) names.push_back("--" + n);
  return names;
}

const CLI::Option* option_named(const CLI::App& verb, std::string_view name) {
  for (const CLI::Option* o : verb.get_options())
    if (name_of(*o) == name) return o;
  return nullptr;
}

std::string example_of(const CLI::App& verb) {
  std::string text = verb.get_description();
  size_t at = text.rfind("example: ");
  return at == std::string::npos ? "" : "; " + text.substr(at);
}

std::string too_much(const CLI::App& app, const CLI::App& verb) {
  std::vector<std::string> rest = verb.remaining();
  if (rest.empty()) rest = app.remaining();  // it stood before the verb
  auto option =
      std::find_if(rest.begin(), rest.end(), [](const std::string& s) { return s.starts_with("-"); });
  if (option == rest.end() && !rest.empty() && rest.front().find('=') != std::string::npos &&
      option_named(verb, "--set"))
    return fmt::format("'{0}' is one argument too many; a key is overridden by --set {0}", rest.front());
  if (option == rest.end())
    return fmt::format("'{}' is one argument too many", rest.empty() ? "" : rest.front());
  std::string given = option->substr(0, option->find('=')), near = suggest(given, options_of(verb));
  if (option_named(verb, given)) return fmt::format("{} comes after the verb", given);
  if (given == "--layout" && option_named(verb, "--require"))
    return "there is no option --layout; a layout's keys are conditions: --require tp=8 --require pp=4";
  if (given == "--layout" && option_named(verb, "--set"))
    return "there is no option --layout; a layout's keys are those of the run file: --set layout.tp=8";
  return fmt::format("there is no option {}{}", given,
                     near.empty() ? "; options are " + fmt::format("{}", fmt::join(options_of(verb), ", "))
                                  : fmt::format(", did you mean {}?", near));
}

std::string missing(const CLI::App& app, const CLI::App& verb) {
  if (app.remaining_size() + verb.remaining_size() > 0)
    return too_much(app, verb);  // what is missing may have been misspelt
  for (const CLI::Option* o : verb.get_options())
    if (o->get_required() && o->count() == 0)
      return fmt::format("{} is required: {}{}", name_of(*o), o->get_description(), example_of(verb));
  if (const std::vector<std::string> inner = verbs_of(verb); &verb != &app && !inner.empty())
    return fmt::format("expected one of {}{}", fmt::join(inner, ", "), example_of(verb));
  return "no verb given: start with `trireme demo`";
}

// "--to: 1 required TEXT missing"
std::string without_value(const CLI::App& verb, const std::string& what) {
  std::string name = what.substr(0, what.find(':'));
  const CLI::Option* o = option_named(verb, name);
  if (!o) return what;
  if (o->count() > 1) return fmt::format("{} is given {} times; expected one value", name, o->count());
  return fmt::format("{} takes a value: {}", name, o->get_description());
}

// "Could not convert: --tokens = many"
std::string no_number(const std::string& what) {
  size_t colon = what.find(": "), equals = what.find(" = ");
  if (colon == std::string::npos || equals == std::string::npos) return what;
  return fmt::format("{}: '{}' is not a number", what.substr(colon + 2, equals - colon - 2),
                     what.substr(equals + 3));
}

}  // namespace

std::string usage_problem(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App& verb = *verb_of(app);
  const std::string what = e.what();
  std::string text = what;
  if (dynamic_cast<const CLI::ExtrasError*>(&e)) text = too_much(app, verb);
  if (dynamic_cast<const CLI::RequiredError*>(&e)) text = missing(app, verb);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&e)) text = without_value(verb, what);
  if (dynamic_cast<const CLI::ConversionError*>(&e)) text = no_number(what);
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (&verb == &app) return fmt::format("{}; `trireme --help` lists all verbs", text);
  if (const CLI::App* parent = verb.get_parent(); parent != &app)
    return fmt::format("{0} {1}: {2} (`trireme {0} {1} --help` says more)", parent->get_name(),
                       verb.get_name(), text);
  return fmt::format("{}: {} (`trireme help {}` says more)", verb.get_name(), text, verb.get_name());
}

void refuse_moved_option(const std::vector<std::string_view>& arguments) {
  struct Moved {
    std::string_view option, to;
  };
  static constexpr std::array kMoved = {Moved{"--search", "search"}, Moved{"--sweep", "search --sweep"},
                                        Moved{"--largest", "search --largest"}, Moved{"--walls", "estimate"},
                                        Moved{"--roofline", "estimate --roofline"}};
  if (arguments.empty() || arguments[0] != "plan") return;
  for (const std::string_view a : arguments)
    for (const Moved& m : kMoved)
      if (a.substr(0, a.find('=')) == m.option)
        bad_request("plan {}: it is now `trireme {}`, with the same other options", m.option, m.to);
}

void refuse_unknown_verb(const CLI::App& app, std::string_view given) {
  if (given.empty() || given[0] == '-') return;
  std::vector<std::string> verbs = verbs_of(app);
  if (std::find(verbs.begin(), verbs.end(), given) != verbs.end()) return;
  std::string near = suggest(given, verbs);
  bad_request("there is no verb '{}'{}; verbs are {}", given,
              near.empty() ? "" : fmt::format(", did you mean {}?", near), fmt::join(verbs, ", "));
}

void add_help(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("help", "all verbs, or one of them\nexample: trireme help train");
  auto name = std::make_shared<std::string>();
  verb->add_option("VERB", *name, "the verb to explain; default: all, a line each");
  verb->callback([&app, name] {
    refuse_unknown_verb(app, *name);
    // app.help() would be that of the verb under way, which is `help` itself.
    const auto normal = CLI::AppFormatMode::Normal;
    print_text("{}", name->empty() ? app.get_formatter()->make_help(&app, app.get_name(), normal)
                                   : app.get_subcommand(*name)->help("trireme"));
  });
}

}  // namespace trireme::cli
