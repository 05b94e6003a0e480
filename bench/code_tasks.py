#!/usr/bin/env python3
"""Writes 152 small programming tasks in HumanEval's format: 38 kinds, each with four values of a number or a word.

    bench/code_tasks.py > tasks.jsonl
    trireme eval --code tasks.jsonl --canonical          # every solution passes
    bench/code_tasks.py --one-per-kind > some.jsonl      # 38 tasks, one of each kind
    bench/code_tasks.py --requests 64 > prompts.jsonl    # requests for other tasks of the same kinds, for distill

The tasks are our own, and small enough for models of 100 M parameters.
"""
import argparse
import json

NUMBERS, WORDS = (2, 3, 5, 7), ("a", "e", "the", "x")
# name, argument, docstring, body, tests (argument text, expected text); {v} is the value.
KINDS = [
    ("add_{v}", "n", "Return n plus {v}.", "return n + {v}", [("1", "1 + {v}"), ("-4", "-4 + {v}"), ("0", "{v}")]),
    ("times_{v}", "n", "Return n times {v}.", "return n * {v}", [("1", "{v}"), ("-4", "-4 * {v}"), ("10", "10 * {v}")]),
    ("power_{v}", "n", "Return n to the power of {v}.", "return n ** {v}", [("2", "2 ** {v}"), ("-3", "(-3) ** {v}"), ("1", "1")]),
    ("divisible_by_{v}", "n", "Return True if n is divisible by {v}, else False.", "return n % {v} == 0", [("0", "True"), ("{v} * 9", "True"), ("{v} * 9 + 1", "False")]),
    ("remainder_{v}", "n", "Return the remainder of n divided by {v}.", "return n % {v}", [("100", "100 % {v}"), ("{v}", "0"), ("1", "1")]),
    ("quotient_{v}", "n", "Return n divided by {v}, rounded down to a whole number.", "return n // {v}", [("100", "100 // {v}"), ("{v}", "1"), ("1", "0")]),
    ("larger_than_{v}", "n", "Return True if n is larger than {v}, else False.", "return n > {v}", [("{v}", "False"), ("{v} + 1", "True"), ("-9", "False")]),
    ("at_most_{v}", "n", "Return n, but at most {v}.", "return min(n, {v})", [("100", "{v}"), ("1", "1"), ("-9", "-9")]),
    ("first_{v}", "items", "Return the first {v} items of the list.", "return items[:{v}]", [("list(range(9))", "list(range({v}))"), ("[]", "[]"), ("[4]", "[4]")]),
    ("last_{v}", "items", "Return the last {v} items of the list.", "return items[-{v}:]", [("list(range(9))", "list(range(9 - {v}, 9))"), ("[4]", "[4]")]),
    ("without_first_{v}", "items", "Return the list without its first {v} items.", "return items[{v}:]", [("list(range(9))", "list(range({v}, 9))"), ("[]", "[]")]),
    ("every_{v}", "items", "Return every item of the list whose index is a multiple of {v}.", "return items[::{v}]", [("list(range(20))", "list(range(0, 20, {v}))"), ("[]", "[]")]),
    ("repeat_{v}", "text", "Return the text repeated {v} times.", "return text * {v}", [("'ab'", "'ab' * {v}"), ("''", "''")]),
    ("add_to_all_{v}", "items", "Return a new list with {v} added to each number.", "return [x + {v} for x in items]", [("[1, 2]", "[1 + {v}, 2 + {v}]"), ("[]", "[]")]),
    ("scale_{v}", "items", "Return a new list with each number multiplied by {v}.", "return [x * {v} for x in items]", [("[1, 2]", "[{v}, 2 * {v}]"), ("[]", "[]")]),
    ("only_above_{v}", "items", "Return the numbers of the list that are larger than {v}.", "return [x for x in items if x > {v}]", [("[1, {v}, {v} + 1]", "[{v} + 1]"), ("[]", "[]")]),
    ("count_{v}", "items", "Return how often the number {v} is in the list.", "return items.count({v})", [("[{v}, 1, {v}]", "2"), ("[]", "0")]),
    ("has_{v}", "items", "Return True if the number {v} is in the list, else False.", "return {v} in items", [("[{v}, 1]", "True"), ("[]", "False")]),
    ("multiples_{v}", "n", "Return a list of the first n positive multiples of {v}.", "return [{v} * i for i in range(1, n + 1)]", [("3", "[{v}, 2 * {v}, 3 * {v}]"), ("0", "[]")]),
    ("sum_plus_{v}", "items", "Return the sum of the list plus {v}.", "return sum(items) + {v}", [("[1, 2]", "3 + {v}"), ("[]", "{v}")]),
    ("longer_than_{v}", "text", "Return True if the text has more than {v} characters, else False.", "return len(text) > {v}", [("'x' * {v}", "False"), ("'x' * ({v} + 1)", "True")]),
    ("cut_{v}", "text", "Return the first {v} characters of the text.", "return text[:{v}]", [("'abcdefghij'", "'abcdefghij'[:{v}]"), ("''", "''")]),
    ("pad_{v}", "text", "Return the text with {v} spaces in front of it.", "return ' ' * {v} + text", [("'ab'", "' ' * {v} + 'ab'"), ("''", "' ' * {v}")]),
    ("largest_{v}", "items", "Return the {v} largest numbers of the list, largest first.", "return sorted(items, reverse=True)[:{v}]", [("[3, 9, 1, 8, 7, 2, 6, 5]", "sorted([3, 9, 1, 8, 7, 2, 6, 5], reverse=True)[:{v}]"), ("[]", "[]")]),
    ("smallest_{v}", "items", "Return the {v} smallest numbers of the list, smallest first.", "return sorted(items)[:{v}]", [("[3, 9, 1, 8, 7, 2, 6, 5]", "sorted([3, 9, 1, 8, 7, 2, 6, 5])[:{v}]"), ("[]", "[]")]),
    ("distance_{v}", "n", "Return the absolute difference of n and {v}.", "return abs(n - {v})", [("0", "{v}"), ("{v}", "0"), ("100", "100 - {v}")]),
    ("times_table_{v}", "n", "Return the text 'n x {v} = result', such as '4 x {v} = ...' for n = 4.", "return f'{{n}} x {v} = {{n * {v}}}'", [("4", "'4 x {v} = ' + str(4 * {v})"), ("0", "'0 x {v} = 0'")]),
    ("swap_if_above_{v}", "n", "Return -n if n is larger than {v}, else n.", "return -n if n > {v} else n", [("{v}", "{v}"), ("{v} + 1", "-{v} - 1"), ("0", "0")]),
]
WORD_KINDS = [
    ("count_word_{v}", "text", "Return how often '{v}' is in the text.", "return text.count('{v}')", [("'{v} and {v}'", "('{v} and {v}').count('{v}')"), ("''", "0")]),
    ("starts_with_{v}", "text", "Return True if the text starts with '{v}', else False.", "return text.startswith('{v}')", [("'{v}bc'", "True"), ("'?'", "False")]),
    ("ends_with_{v}", "text", "Return True if the text ends with '{v}', else False.", "return text.endswith('{v}')", [("'bc{v}'", "True"), ("'?'", "False")]),
    ("remove_{v}", "text", "Return the text without any '{v}'.", "return text.replace('{v}', '')", [("'1{v}2{v}3'", "'123'"), ("''", "''")]),
    ("dash_for_{v}", "text", "Return the text with each '{v}' replaced by '-'.", "return text.replace('{v}', '-')", [("'1{v}2'", "'1-2'"), ("''", "''")]),
    ("split_at_{v}", "text", "Return the list of parts of the text between occurrences of '{v}'.", "return text.split('{v}')", [("'1{v}2'", "['1', '2']"), ("'1'", "['1']")]),
    ("join_with_{v}", "items", "Return the texts of the list joined by '{v}'.", "return '{v}'.join(items)", [("['1', '2']", "'1{v}2'"), ("[]", "''")]),
    ("append_{v}", "text", "Return the text with '{v}' at its end.", "return text + '{v}'", [("'1'", "'1{v}'"), ("''", "'{v}'")]),
    ("prepend_{v}", "text", "Return the text with '{v}' in front of it.", "return '{v}' + text", [("'1'", "'{v}1'"), ("''", "'{v}'")]),
    ("contains_{v}", "text", "Return True if '{v}' is in the text, else False.", "return '{v}' in text", [("'1{v}2'", "True"), ("'12'", "False")]),
]


def task(kind, value):
    name, argument, doc, body, tests = kind

    def fill(text):
        return text.format(v=value)

    head = f"def {fill(name)}({argument}):\n    \"\"\"{fill(doc)}\"\"\"\n"
    checks = "".join(f"    assert candidate({fill(a)}) == {fill(e)}\n" for a, e in tests)
    return {"task_id": f"small/{fill(name)}", "prompt": head, "entry_point": fill(name),
            "canonical_solution": f"    {fill(body)}\n", "test": f"def check(candidate):\n{checks}"}


def chosen(offset):
    """One task of each kind; another offset gives other values."""
    kinds = [(k, NUMBERS) for k in KINDS] + [(k, WORDS) for k in WORD_KINDS]
    return [task(kind, values[(i + offset) % 4]) for i, (kind, values) in enumerate(kinds)]


def requests(count):
    """As trireme asks a chat model (src/tasks/code_tasks.cc), of the tasks that --one-per-kind leaves out."""
    pairs = [t for two in zip(chosen(1), chosen(2)) for t in two]
    for t in [t for n, t in enumerate(pairs) if n % 6 != 5][:count]:
        yield {"prompt": "Complete this Python function. Answer with the whole function in one code block.\n\n"
                         f"```python\n{t['prompt']}\n```"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--one-per-kind", action="store_true", help="38 tasks, one of each kind")
    only.add_argument("--requests", type=int, metavar="N", help="N requests (at most 64) for tasks of other values")
    o = parser.parse_args()
    if o.requests:
        lines = requests(o.requests)
    elif o.one_per_kind:
        lines = chosen(0)
    else:
        lines = (task(kind, value) for kinds, values in ((KINDS, NUMBERS), (WORD_KINDS, WORDS))
                 for kind in kinds for value in values)
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
