#!/usr/bin/env python3
"""Compares `trireme tokenize --chat` with transformers: ids and loss mask of conversations, template by template.

    tools/compare_chat.py TRIREME TOKENIZER_FOLDER TEMPLATE.jinja... [--conversations 1000]

Needs transformers and jinja2. Conversations are drawn from a seed: system prompts, several turns, tools, calls and
their results, reasoning, blanks and characters beyond ASCII at the ends of texts. A conversation that the template
rejects in transformers must be rejected here too. If a template has no {% generation %} blocks, the expected mask
follows the rule of docs/data.md, computed with transformers' renderings.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

TOOLS = [{"type": "function", "function": {
    "name": name, "description": f"Looks up {name} \u2014 \"fast\" <b>&</b>", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "a name", "enum": ["Bern", "Zürich"]},
                                         "days": {"type": "integer"}, "rate": {"type": "number", "minimum": 0.5}},
        "required": ["city"]}}} for name in ("weather", "trains")]
WORDS = ["alpha", "Büro", "x = 1\n  y", "naïve café", "日本語", "🙂 ok", "tabs\tand", "\"quoted\"", "it's", "<tag>", "3.14", "e\u0301"]


def text(r):
    body = " ".join(r.choice(WORDS) for _ in range(r.randint(1, 8)))
    return r.choice(["", "", "", " ", "\n", "\u00a0"]) + body + r.choice(["", "", "", " ", "\n\n"])


def conversation(r):
    messages, tools = [], None
    if r.random() < 0.5:
        messages.append({"role": "system", "content": text(r)})
    if r.random() < 0.4:
        tools = r.sample(TOOLS, r.randint(1, 2))
    for _ in range(r.randint(1, 3)):
        messages.append({"role": "user", "content": text(r)})
        if tools and r.random() < 0.6:
            call = {"name": tools[0]["function"]["name"], "arguments": {"city": r.choice(WORDS), "days": r.randint(0, 9)}}
            messages.append({"role": "assistant", "content": r.choice(["", text(r)]), "tool_calls": [
                {"id": "call12345", "type": "function", "function": call}]})
            messages.append({"role": "tool", "name": call["name"], "tool_call_id": "call12345",
                             "content": json.dumps({"t": r.randint(-9, 30)})})
        answer = {"role": "assistant", "content": text(r)}
        if r.random() < 0.15:
            answer["reasoning_content"] = text(r)
        messages.append(answer)
    out = {"messages": messages}
    if tools:
        out["tools"] = tools
    return out


def common_prefix(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def expected(tokenizer, source, marked, c):
    """(ids, mask) or None where transformers rejects the conversation."""
    def render(messages, **more):
        return tokenizer.apply_chat_template(messages, tools=c.get("tools"), chat_template=source, tokenize=False, **more)
    try:
        if marked:
            out = tokenizer.apply_chat_template(c["messages"], tools=c.get("tools"), chat_template=source,
                                                return_dict=True, return_assistant_tokens_mask=True)
            return out["input_ids"], out["assistant_masks"]
        whole, spans = render(c["messages"]), []
        for i, m in enumerate(c["messages"]):
            if i == 0 or m["role"] != "assistant":
                continue
            with_message = render(c["messages"][:i + 1])
            begin = common_prefix(render(c["messages"][:i], add_generation_prompt=True), with_message)
            if whole.startswith(with_message) and begin < len(with_message):
                spans.append((begin, len(with_message)))
    except Exception as e:  # whatever the template raises
        return None
    out = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    mask = [int(any(b > s and a < e for s, e in spans)) for a, b in out["offset_mapping"]]
    return out["input_ids"], mask


def read_shard(prefix):
    idx, raw = (prefix.with_suffix(s).read_bytes() for s in (".idx", ".bin"))
    bits = prefix.with_suffix(".mask").read_bytes()[16:]
    width = {8: "H", 4: "i"}[idx[17]]
    count = struct.unpack_from("<Q", idx, 18)[0]
    lengths = struct.unpack_from(f"<{count}i", idx, 34)
    ids = struct.unpack(f"<{len(raw) // struct.calcsize(width)}{width}", raw)
    out, at = [], 0
    for n in lengths:
        out.append((list(ids[at:at + n]), [bits[i // 8] >> i % 8 & 1 for i in range(at, at + n)]))
        at += n
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trireme"), p.add_argument("tokenizer"), p.add_argument("templates", nargs="+")
    p.add_argument("--conversations", type=int, default=1000)
    a = p.parse_args()
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(a.tokenizer)
    bad = 0
    for template in a.templates:
        source = pathlib.Path(template).read_text()
        marked = "generation %}" in source or "generation -%}" in source
        r = random.Random(template)
        lines, wanted, rejected = [], [], []
        for _ in range(a.conversations):
            c = conversation(r)
            e = expected(tokenizer, source, marked, c)
            (rejected if e is None else lines).append(json.dumps(c, ensure_ascii=False))
            if e is not None:
                wanted.append((list(e[0]), [0] + list(e[1][1:])))  # a document's first token is not a target
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            name = pathlib.Path(template).name

            def run(some, *more):
                (folder / "c.jsonl").write_text("\n".join(some) + "\n")
                return subprocess.run([a.trireme, "tokenize", "--chat", folder / "c.jsonl", "--tokenizer",
                                       pathlib.Path(a.tokenizer) / "tokenizer.json", "--chat-template", template,
                                       "--hold-out", "0", "--out", folder / "out", *more], capture_output=True, text=True)
            if not lines:
                print(f"{name}: transformers rejects all conversations")
                continue
            done = run(lines)
            if done.returncode:
                print(f"{name}: FAILS {done.stderr.strip()[-300:]}")
                bad += 1
                continue
            ours = read_shard(folder / "out" / "train")
            ids = sum(x[0] == y[0] for x, y in zip(ours, wanted))
            masks = sum(x == y for x, y in zip(ours, wanted))
            also = 0
            if rejected:
                out = run(rejected + lines[:1], "--skip-bad-lines").stdout
                skipped = [line for line in out.splitlines() if line.startswith("skipped: ")]
                also = int(skipped[0].split()[1]) if skipped else 0
            wrong = ids != len(wanted) or masks != len(wanted) or also != len(rejected)
            bad += wrong
            print(f"{name}: {len(wanted)} conversations, ids equal in {ids}, ids and mask in {masks}"
                  f"{' (marks)' if marked else ''}; {len(rejected)} rejected by both{'' if also == len(rejected) else f' ({also} here)'}"
                  f"{'  WRONG' if wrong else ''}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
