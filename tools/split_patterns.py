"""Random split patterns and random text, and the published patterns, for compare_tokenizers.py --patterns.

A pattern is drawn from the language that src/text/regex_parse.h accepts, and from what it must reject. Each accepted
pattern becomes a tokenizer.json whose merges join all pairs of the bytes that occur, so that a cut at another place gives
other ids. trireme may reject a pattern, but never give other ids than the library.
"""
import json
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

PUBLISHED = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", r"\s?\p{L}+", r"\s?\p{P}+", r"[\r\n]", r"\p{N}", r"[0-9][0-9][0-9]",
    " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+", r"\d{1,3}(?=(?:\d{3})*\b)",
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
]
PROPERTIES = ("L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn LC Han "
              "Hiragana Katakana Hangul Letter Uppercase_Letter Mark Number Punctuation Symbol Separator Other Control "
              "Format Unassigned Private_Use Math_Symbol Decimal_Number").split()
ODD = list("abcdefilstzABFKSTZ'\"  \n\r\t-_.,;0123456789!?&]}\u00e9\u00df\u017f\u212a\u5b57\u3072\u30ab\ud55c\u180e\u0301\u0903"
           "\u0130\u01c5\u00b2\u2177\u24b6\u200d\u2028\u3000\ufeff\u2019\ufb00\ufb06\u0149\u0390\u0663\u00bd\x0b\x1c\x85\xa0"
           "\u200b\u1680\u0345\U0001F600\U0001F130\u0378\U000105C0\U00010D40\x00\x7f")


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def literal(self):
        c = self.r.choice(ODD)
        kind = self.r.random()
        if c in ".^$*+?{}[]()|\\&-" or (kind < 0.05 and " " < c < "\x7f" and not c.isalnum()):
            return "\\" + c
        if kind < 0.1 or c == "\0":
            return f"\\x{{{ord(c):X}}}"
        return f"\\u{ord(c):04X}" if kind < 0.13 and ord(c) < 0x10000 else c

    def escape(self):
        if self.r.random() < 0.5:
            return self.r.choice((r"\p{%s}", r"\P{%s}", r"\p{^%s}", r"\p{%s}")) % self.r.choice(PROPERTIES)
        return "\\" + self.r.choice("sSdDwWhHvtfnrae")

    def charset(self, depth=0):
        r, out = self.r, "["
        out += "^" if r.random() < 0.35 else ""
        out += "-" if r.random() < 0.05 else ""
        for _ in range(r.randint(1, 4)):
            kind = r.random()
            if kind < 0.35:
                out += self.escape()
            elif kind < 0.75 or depth == 2:
                out += self.literal()
            elif kind < 0.87:
                out += r.choice(("a-z", "A-Z", "0-9", "a-f", "\u4e00-\u9fa5", "\\x{100}-\\x{24F}", "!-/", "\\x{0}-\\x{7F}"))
            else:
                out += self.charset(depth + 1)
            if r.random() < 0.08:
                out += "&&" + (self.charset(depth + 1) if depth < 2 else self.escape())
        return out + ("-]" if r.random() < 0.05 else "]")

    def term(self, depth):
        r = self.r
        kind = r.random()
        if kind < 0.3:
            return self.literal() + self.repeat()
        if kind < 0.5:
            return self.escape() + self.repeat()
        if kind < 0.72:
            return self.charset() + self.repeat()
        if kind < 0.76:
            return "." + self.repeat()
        if kind < 0.81:
            return r.choice(("^", "$", r"\A", r"\z", r"\Z", r"\b", r"\B", r"\G"))
        if kind < 0.83:
            return r.choice((r"\R", r"\X", r"\Qa\E", "[[:alpha:]]", "(?<n>a)", r"a\Kb", "a**", "a{2}?", r"\101", "(?x: a)"))
        if depth > 2:
            return "a"
        opening = r.choice(("(?:", "(?:", "(?:", "(", "(?i:", "(?m:", "(?>", "(?=", "(?!", "(?!", "(?<=", "(?<!", "(?i)", "(?-i:"))
        if opening == "(?i)":
            return opening
        if opening.startswith("(?<"):
            return opening + r.choice((self.literal(), self.charset(), self.literal() + self.escape())) + ")"
        look = opening in ("(?=", "(?!")
        return opening + self.pattern(depth + 1) + ")" + ("" if look else self.repeat())

    def repeat(self):
        if self.r.random() < 0.5:
            return ""
        return self.r.choice("* + ? *? +? ?? *+ ++ ?+ {1,3} {2} {2,} {1,3}+ {1,3}? {,2} {2}+ {3}".split())

    def pattern(self, depth=0):
        def sequence():
            return "".join(self.term(depth) for _ in range(self.r.choice((1, 1, 1, 2, 2, 3))))
        return "|".join(sequence() for _ in range(self.r.choice((1, 1, 1, 2, 3))))

    def text(self, pattern):
        near = [c for c in pattern if c.isalnum()][:6] + list("ab \n1st")
        r = self.r
        alphabet = near if r.random() < 0.4 else ODD
        out = []
        for _ in range(r.choice((1, 2, 3, 5, 8, 13, 30))):
            c = r.choice(alphabet) if r.random() < 0.9 else chr(r.randrange(0x110000))
            out.append("\ufffd" if "\ud800" <= c <= "\udfff" else c)
        return "".join(out)


def stand_ins():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def tokenizer_of(pattern, texts):
    spell = stand_ins()
    vocab = {c: i for i, c in enumerate(sorted(spell.values()))}
    counts = {}
    for text in texts:
        data = text.encode()
        for pair in zip(data, data[1:]):
            counts[pair] = counts.get(pair, 0) + 1
    merges = [[spell[a], spell[b]] for a, b in sorted(counts, key=counts.get, reverse=True)]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None,
                       "decoder": level, "model": model})


def compare(trireme, seconds, seed, shard):
    make = Maker(seed)
    known = list(PUBLISHED)
    counts = {"patterns": 0, "rejected": 0, "rejected_by_library": 0, "texts": 0, "differ": 0}
    reasons = {}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        while time.monotonic() < end:
            published = bool(known)
            pattern = known.pop() if known else make.pattern()
            texts = [make.text(pattern) for _ in range(300 if published else 30)]
            counts["patterns"] += 1
            (folder / "t.json").write_text(tokenizer_of(pattern, texts))
            (folder / "d.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
            done = subprocess.run([trireme, "tokenize", folder / "d.jsonl", "--tokenizer", folder / "t.json", "--out",
                                   folder / "out", "--hold-out", "0", "--end-of-text", "", "--threads", "1"],
                                  capture_output=True, text=True, errors="replace")
            if done.returncode:
                if published or done.returncode != 2:
                    print(f"{pattern!r}: {done.stderr.strip()}")
                    counts["differ"] += 1
                counts["rejected"] += 1
                why = re.sub(r'^.*?": | at byte.*', "", done.stderr.strip())[:60]
                reasons[why] = reasons.get(why, 0) + 1
                continue
            try:
                peer = Tokenizer.from_file(str(folder / "t.json"))
                want = [peer.encode(t, add_special_tokens=False).ids for t in texts]
            except BaseException:  # a panic of the library is not an Exception
                counts["rejected_by_library"] += 1
                continue
            for text, ids, right in zip(texts, shard(folder / "out" / "train"), want, strict=True):
                counts["texts"] += 1
                if ids != right:
                    counts["differ"] += 1
                    print(f"{pattern!r} on {text!r}: {ids}, the library says {right}", flush=True)
                    break
    print(json.dumps(dict(counts, seed=seed, reasons=dict(sorted(reasons.items(), key=lambda r: -r[1])[:12]))))
    return counts["differ"] > 0
