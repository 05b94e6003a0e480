// Chat templates: what each construct of the subset renders (as Jinja 3.1 with the settings of transformers
// does), and the constructs that are rejected.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "folder.h"

namespace trireme {
namespace {

using Ordered = nlohmann::ordered_json;

ChatTemplate from(const std::string& source) {
  return ChatTemplate::of(source, "t.jinja", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
}
ChatInput talk() {
  return {.messages = Ordered::parse(
              R"([{"role": "user", "content": "Hi  "}, {"role": "assistant", "content": " Ho\n"}])")};
}
std::string rendered(const std::string& source, const std::string& variables = "{}") {
  ChatInput in = talk();
  in.variables = Ordered::parse(variables);
  return from(source).render(in).text;
}
std::string fault(const std::string& source, const std::string& variables = "{}") {
  try {
    return "rendered: " + rendered(source, variables);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
}

TEST(ChatTemplate, SmolLm2) {
  const ChatTemplate t = from(
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
      "'<|im_start|>system\n"
      "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
      "' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n"
      "' + message['content'] + '<|im_end|>' + '\n"
      "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n"
      "' }}{% endif %}");
  ChatInput in = talk();
  in.add_generation_prompt = true;
  EXPECT_EQ(
      t.render(in).text,
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
      "<|im_start|>user\nHi  <|im_end|>\n<|im_start|>assistant\n Ho\n<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_FALSE(t.marks_generated(in));
}

struct Case {
  const char *source, *text;
};

TEST(ChatTemplate, RendersAsJinja) {
  const Case cases[] = {
      // white space
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
      {"a \n {%- if true -%} \n b \n {%- endif +%}\n c", "ab\n c"},
      {"x {#- note -#} y{# n #}\nz", "xyz"},
      {"{% raw %}{{ x }}{% endraw %}\n!", "{{ x }}!"},
      {"  {{ 'a' }}\n", "  a"},
      // values
      {"{{ bos_token }}{{ none }}{{ true }}{{ missing }}{{ 1.0 }} {{ 1e20 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 "
       "/ 2 }} {{ -7 % 3 }} {{ 2 ** 3 }}",
       "<s>NoneTrue1.0 1e+20 3 -4 3.5 2 8"},
      {"{{ ['a', 1, None, {'k': \"it's\"}] }}", "['a', 1, None, {'k': \"it's\"}]"},
      {"{{ (1,) }}{{ 'a' ~ 1 ~ 'b' }}{{ 'ab' * 2 }}", "(1,)a1babab"},
      {"{{ 'é€x'[1] }}{{ 'é€x'[::-1] }}{{ 'abcd'[1:3] }}{{ [1,2,3][-2:] }}{{ 'é€'|length }}",
       "€x€ébc[2, 3]2"},
      {"{{ 'a\\n\\x41\\u20ac' 'b' }}", "a\nA€b"},
      {"{{ 1 < 2 < 3 }}{{ 'a' in 'cat' }}{{ 'k' not in {'k': 1} }}{{ 1 == 1.0 and not 0 }}",
       "TrueTrueFalseTrue"},
      {"{{ 'x' if false }}{{ 'x' if false else 'y' }}{{ '' or 'z' }}{{ 0 and 1 }}", "yz0"},
      // statements
      {"{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ m.role }},{% endfor %}",
       "1Falseuser,2Trueassistant,"},
      {"{% for k, v in {'a': 1, 'b': 2}.items() if v > 1 %}{{ k }}{{ v }}{{ loop.length }}{% else %}none{% "
       "endfor %}",
       "b21"},
      {"{% for x in [] %}{% else %}none{% endfor %}", "none"},
      {"{% for x in range(5) %}{% if x == 1 %}{% continue %}{% elif x == 3 %}{% break %}{% endif %}{{ x }}{% "
       "endfor %}",
       "02"},
      {"{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "221"},
      {"{% set ns = namespace(x=1) %}{% for i in [1, 2] %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}",
       "3"},
      {"{% set t | upper %}a{{ 1 }}{% endset %}{{ t }}{% set a, b = 1, 2 %}{{ a + b }}", "A13"},
      {"{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}", "[1d][12]"},
      {"{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(*[1]) }}{{ m(*(1, 2)) }}{{ m(b=3, *[4]) }}"
       "{{ m(5, **{'b': 6}) }}{{ m(*'xy') }}",
       "[1d][12][43][56][xy]"},
      {"{% macro m(x) %}<{{ caller(x) }}{{ caller(2) }}>{% endmacro %}{% for i in [7, 8] %}"
       "{% call(n, k='z') m(1) %}{{ i }}{{ n }}{{ k }};{% endcall %}{% endfor %}",
       "<71z;72z;><81z;82z;>"},
      {"{% macro m() %}{% if caller is defined %}{{ caller() }}{% else %}-{% endif %}{% endmacro %}"
       "{{ m() }}{% call m() %}a{% call m() %}b{% endcall %}c{% endcall %}",
       "-abc"},
      {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
      // filters
      {"{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
       "['Hi  ']"},
      {"{{ messages | rejectattr('role', '==', 'user') | map(attribute='role') | join(',') }}", "assistant"},
      {"{{ {'b': 1, 'a': [true, none, 1.5, 'é\"\\n']} | tojson }}",
       "{\"b\": 1, \"a\": [true, null, 1.5, \"é\\\"\\n\"]}"},
      {"{{ {'b': [1], 'a': {}} | tojson(indent=2) }}", "{\n  \"b\": [\n    1\n  ],\n  \"a\": {}\n}"},
      {"{{ ' a ' | trim }}{{ missing | default('d') }}{{ '' | default('e', true) }}{{ 'aba' | replace('a', "
       "'c') }}",
       "adecbc"},
      {"{{ [3, 1, 2] | sort | join }}{{ [1, 2] | first }}{{ [1, 2] | last }}{{ '12' | int + 1 }}{{ ['A', "
       "'a'] | unique | join }}",
       "1231213A"},
      {"{{ 'a\nb' | indent(2) }}{{ 'aB c' | title }}{{ 'élan' | upper }}{{ 'AB' | lower }}{{ 'aB' | "
       "capitalize }}",
       "a\n  bAb CÉLANabAb"},
      {"{{ {'b': 1, 'a': 2} | dictsort }}{{ [1, 'x'] | string }}{{ {'a': 1} | items | list }}",
       "[('a', 2), ('b', 1)][1, 'x'][('a', 1)]"},
      // tests
      {"{{ 1 is number }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ missing is defined "
       "}}{{ none is none }}{{ 3 is odd }}{{ true is boolean }}{{ 'a' is sequence }}{{ 1 is not string }}",
       "TrueTrueTrueTrueFalseTrueTrueTrueTrueTrue"},
      {"{{ 4 is divisibleby 2 }}{{ 2 is eq 2 }}{{ 'a' is in ['a'] }}", "TrueTrueTrue"},
      // methods
      {"{{ ' a b '.strip() }}|{{ 'a,b,c'.split(',', 1) }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'a b'.title() "
       "}}{{ '</t>x'.split('</t>')[-1] }}{{ 'xxa'.lstrip('x') }}",
       "a b|['a', 'b,c']TrueA Bxa"},
      {"{{ {'k': 1}.get('k') }}{{ {'k': 1}.get('z', 2) }}{{ {'items': 5}['items'] }}{{ {'a': 1}.keys() | "
       "list }}{{ 'a-b'.replace('-', '+') }}{{ 'abcb'.rfind('b') }}",
       "125['a']a+b3"},
  };
  for (const Case& c : cases) EXPECT_EQ(rendered(c.source), c.text) << c.source;
}

TEST(ChatTemplate, GenerationBlocksAreMarked) {
  const ChatTemplate t = from(
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ "
      "eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  const auto r = t.render(talk());
  EXPECT_EQ(r.text, "user:Hi  assistant: Ho\n</s>");
  ASSERT_EQ(r.generated.size(), 1u);
  EXPECT_EQ(r.text.substr(r.generated[0].begin, r.generated[0].end - r.generated[0].begin), " Ho\n</s>");
  EXPECT_TRUE(t.marks_generated(talk()));
}

TEST(ChatTemplate, FaultsNameFileLineAndConstruct) {
  const Case cases[] = {
      {"a\n{% include 'x' %}", "t.jinja, line 2: {% include %} is not supported"},
      {"{{ 'a' | nosuch }}", "t.jinja, line 1: the filter \"nosuch\" is not supported"},
      {"\n\n{{ 1 is nosuch }}", "t.jinja, line 3: the test \"nosuch\" is not supported"},
      {"{{ f(**x, a=1) }}", "t.jinja, line 1: expected \")\", found \"a\""},
      {"{{ f(*x, 1) }}", "t.jinja, line 1: expected a named argument, found \"1\""},
      {"{% call 1 %}{% endcall %}", "t.jinja, line 1: {% call %} wants a call"},
      {"{% for x in y recursive %}{% endfor %}", "t.jinja, line 1: a recursive loop is not supported"},
      {"{% if true %}", "t.jinja, line 1: expected {% endif %}, found the end of the template"},
      {"{{ 'a }}", "t.jinja, line 1: a text is not closed by '"},
      {"{{ raise_exception('roles!') }}", "t.jinja, line 1: the template rejects the conversation: roles!"},
      {"\n{{ missing.x }}", "t.jinja, line 2: \"missing\" is undefined"},
      {"{{ 'a' + missing }}", "t.jinja, line 1: \"missing\" is undefined"},
      {"{{ 'a' + 1 }}", "t.jinja, line 1: + of str and int is not supported"},
      {"{{ [].append(1) }}",
       "t.jinja, line 1: list.append() is not supported: values of a template do not change"},
      {"{{ lipsum() }}", "t.jinja, line 1: \"lipsum\" is undefined"},
  };
  for (const Case& c : cases) EXPECT_EQ(fault(c.source), c.text) << c.source;
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  const Case cases[] = {
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deeper"},
      {"{% macro m() %}{{ caller is defined }}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}", "deeper"},
      {"{% set ns = namespace() %}{% macro m() %}{% set ns.c = caller %}{% endmacro %}{% call m() %}x{% "
       "endcall %}"
       "{{ ns.c() }}",
       "caller() after the end of its {% call %}"},
      {"{{ dict(**1) }}", "** of int, not of a dict"},
      {"{{ dict(a=1, **{'a': 2}) }}", "two arguments with the name a"},
      {"{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% "
       "endfor %}",
       "bytes"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
       "nests values"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
       "ns.x == ns.x }}",
       "steps"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
       "ns.x | tojson }}",
       "steps"},
      {"{{ 'a' * 999999999999 }}", "bytes"},
      {"{{ range(999999999) }}", "range()"},
      {"{{ 9223372036854775807 + 1 }}", "64 bits"},
      {"{{ 1 // 0 }}", "zero"},
  };
  for (const Case& c : cases) EXPECT_NE(fault(c.source).find(c.text), std::string::npos) << fault(c.source);
  EXPECT_NE(fault("{{ " + std::string(5000, '(') + std::string(5000, ')') + " }}").find("nests deeper"),
            std::string::npos);
  EXPECT_NE(fault("{{ 1" + std::string(5000, '+') + "1 }}").find("nests deeper"), std::string::npos);
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; i++) chain += " + 1";
  EXPECT_NE(fault(chain + " }}").find("nests deeper"), std::string::npos);
  std::string ifs;
  for (int i = 0; i < 5000; i++) ifs += "{% if 1 %}";
  EXPECT_NE(fault(ifs).find("nests deeper"), std::string::npos);
}

TEST(ChatTemplate, ComesFromAFolder) {
  const TestFolder folder;
  EXPECT_FALSE(ChatTemplate::find(folder.path()).has_value());
  write_text_atomic(folder.path() / "tokenizer_config.json",
                    R"({"eos_token": {"content": "<e>"}, "chat_template": [
                       {"name": "default", "template": "plain{{ eos_token }}{{ bos_token }}"},
                       {"name": "tool_use", "template": "tools{{ tools | length }}"}]})");
  write_text_atomic(folder.path() / "special_tokens_map.json",
                    R"({"bos_token": "<b>", "eos_token": "other"})");
  const ChatTemplate t = ChatTemplate::load(folder.path());
  ChatInput in = talk();
  EXPECT_EQ(t.render(in).text, "plain<e><b>");
  in.tools = Ordered::parse("[{}]");
  EXPECT_EQ(t.render(in).text, "tools1");
  write_text_atomic(folder.path() / "chat_template.jinja", "file{{ date }}");
  in.variables = Ordered::parse(R"({"date": "today"})");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(in).text, "filetoday");
  in.messages = Ordered::array();
  EXPECT_THROW(t.render(in), Error);
}

}  // namespace
}  // namespace trireme
