// trireme completion SHELL: a script that completes verbs, options, their values, keys behind --set, and
// files. It is made from the command line itself, so it knows what this program knows.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "catalog/catalog.h"
#include "cli/cli.h"

namespace trireme::cli {
namespace {

struct Option {
  std::string name, help;  // "--stop-after"
  bool takes_value = false;
  std::vector<std::string> choices;  // of its value; none: a file
  std::vector<std::string> names;    // that it takes beside files
};
struct Verb {
  std::string name, help;
  std::vector<Option> options;
};

// CLI11 tells the choices of an option only in its type's name: "TEXT:{f32,bf16}".
std::vector<std::string> choices_of(const CLI::Option& o) {
  std::string type = o.get_type_name();
  size_t open = type.find('{'), close = type.find('}', open == std::string::npos ? 0 : open);
  std::vector<std::string> all;
  if (open == std::string::npos || close == std::string::npos) return all;
  for (size_t at = open + 1; at < close;) {
    size_t end = std::min(type.find(',', at), close);
    all.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

// Names that an option takes beside files: known models, and devices.
std::vector<std::string> known_names(const std::string& option) {
  std::vector<std::string> all;
  if (option == "--model")
    for (const KnownShape& s : shipped_catalog().shapes) all.push_back(s.names.front());
  if (option == "--cluster")
    for (const KnownDevice& d : shipped_catalog().devices) all.push_back(d.name);
  std::erase_if(all, [](const std::string& name) { return name.find_first_of(" '\"") != name.npos; });
  return all;
}

std::vector<Verb> verbs_of(CLI::App& app) {
  std::vector<Verb> all;
  for (CLI::App* v : app.get_subcommands([](CLI::App*) { return true; })) {
    std::string help = v->get_description();
    Verb verb{v->get_name(), help.substr(0, help.find('\n')), {}};
    for (const CLI::Option* o : v->get_options())
      if (o->nonpositional()) {
        const bool is_long = !o->get_lnames().empty();  // else "-k" alone
        const std::string name = is_long ? "--" + o->get_lnames().front() : "-" + o->get_snames().front();
        verb.options.push_back(
            {name, o->get_description(), o->get_items_expected_max() > 0, choices_of(*o), known_names(name)});
      }
    all.push_back(verb);
  }
  return all;
}

std::vector<std::string> names(const std::vector<Verb>& verbs) {
  std::vector<std::string> all;
  for (const Verb& v : verbs) all.push_back(v.name);
  return all;
}
std::vector<std::string> names(const std::vector<Option>& options) {
  std::vector<std::string> all;
  for (const Option& o : options) all.push_back(o.name);
  return all;
}
std::vector<std::string> keys() {
  std::vector<std::string> all;
  for (const ConfigRow& r : config_rows()) all.push_back(r.key + "=");
  return all;
}

// A key's values, where it has a few: "one of a, b".
std::vector<std::string> values_of(const ConfigRow& r) {
  constexpr std::string_view kOneOf = "one of ";
  std::vector<std::string> all;
  if (!r.allowed.starts_with(kOneOf)) return all;
  for (size_t at = kOneOf.size(); at < r.allowed.size();) {
    const size_t end = std::min(r.allowed.find(", ", at), r.allowed.size());
    all.push_back(r.allowed.substr(at, end - at));
    at = end + 2;
  }
  return all;
}

std::vector<std::string> keys_with_values() {
  std::vector<std::string> all;
  for (const ConfigRow& r : config_rows())
    for (const std::string& value : values_of(r)) all.push_back(r.key + "=" + value);
  return all;
}

// What both bash and zsh (through its bashcompinit) run.
std::string bash(const std::vector<Verb>& verbs) {
  std::string options, values, of_keys;
  for (const ConfigRow& r : config_rows())
    if (const auto all = values_of(r); !all.empty())
      of_keys += fmt::format("      {}) words='{}' ;;\n", r.key, fmt::join(all, " "));
  for (const Verb& v : verbs) {
    options += fmt::format("    {}) words='{}' ;;\n", v.name, fmt::join(names(v.options), " "));
    for (const Option& o : v.options)
      if (!o.choices.empty())
        values += fmt::format("    {}:{}) words='{}' ;;\n", v.name, o.name, fmt::join(o.choices, " "));
      else if (!o.names.empty())
        values += fmt::format("    {}:{}) words='{}' files=1 ;;\n", v.name, o.name, fmt::join(o.names, " "));
  }
  return fmt::format(
      R"(# completion of trireme for bash; put it to use with:  source <(trireme completion bash)
_trireme() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}} words= files= key=
  COMPREPLY=()
  # bash takes "=" for a word: --set KEY = VALUE
  if [[ $cur == = ]]; then key=$prev cur=; elif [[ $prev == = ]]; then key=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  if [[ -n $key ]]; then
    case $key in
{4}    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    return 0
  fi
  if [[ $COMP_CWORD == 1 ]]; then
    COMPREPLY=($(compgen -W '{0} --help --version' -- "$cur"))
    return
  fi
  case $verb:$prev in
    help:help) words='{0}' ;;
    completion:completion) words='bash zsh fish' ;;
    *:--set)
      COMPREPLY=($(compgen -W '{1}' -- "$cur"))
      compopt -o nospace 2>/dev/null
      return 0 ;;
{2}  esac
  if [[ -z $words && $cur == -* ]]; then
    case $verb in
{3}    esac
  fi
  if [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    if [[ -n $files ]]; then COMPREPLY+=($(compgen -f -- "$cur")); fi
  else
    COMPREPLY=($(compgen -f -- "$cur"))
    compopt -o filenames 2>/dev/null
  fi
  return 0
}}
complete -F _trireme trireme
)",
      fmt::join(names(verbs), " "), fmt::join(keys(), " "), values, options, of_keys);
}

std::string zsh(const std::vector<Verb>& verbs) {
  return "#compdef trireme\n# completion of trireme for zsh; put it to use with:  source <(trireme "
         "completion zsh)\n"
         "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n" +
         bash(verbs);
}

std::string fish_text(std::string s) {
  for (size_t at = 0; (at = s.find_first_of("'\\", at)) != std::string::npos; at += 2) s.insert(at, "\\");
  return "'" + s + "'";
}

std::string fish(const std::vector<Verb>& verbs) {
  std::string s = "# completion of trireme for fish; put it into ~/.config/fish/completions/trireme.fish\n";
  for (const Verb& v : verbs)
    s += fmt::format("complete -c trireme -f -n __fish_use_subcommand -a {} -d {}\n", v.name,
                     fish_text(v.help));
  for (const Verb& v : verbs)
    for (const Option& o : v.options) {
      s += fmt::format("complete -c trireme -n '__fish_seen_subcommand_from {}' -l {} -d {}", v.name,
                       o.name.substr(2), fish_text(o.help));
      if (o.name == "--set")
        s += fmt::format(" -x -a '{} {}'", fmt::join(keys(), " "), fmt::join(keys_with_values(), " "));
      else if (!o.choices.empty())
        s += fmt::format(" -x -a '{}'", fmt::join(o.choices, " "));
      else if (!o.names.empty())
        s += fmt::format(" -r -a '{}'", fmt::join(o.names, " "));
      else if (o.takes_value)
        s += " -r";
      s += "\n";
    }
  s += fmt::format("complete -c trireme -f -n '__fish_seen_subcommand_from help' -a '{}'\n",
                   fmt::join(names(verbs), " "));
  return s + "complete -c trireme -f -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n";
}

}  // namespace

void add_completion(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("completion",
                         "a script that completes verbs, options, keys and files in bash, zsh or fish\n"
                         "example: trireme completion bash > trireme.bash && source trireme.bash");
  auto shell = std::make_shared<std::string>();
  verb->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->callback([&app, shell] {
    std::vector<Verb> verbs = verbs_of(app);
    print_text("{}", *shell == "bash" ? bash(verbs) : *shell == "zsh" ? zsh(verbs) : fish(verbs));
  });
}

}  // namespace trireme::cli
