#!/usr/bin/env python3
"""Text into tokens: MB/s of `trireme tokenize`, and of the `tokenizers` library where --peer-python has it.

    python3 bench/encode.py --threads 1 2

The text is Python's standard library, the tokenizer one of 32,768 tokens learned from it. It is encoded once before, so
that files come from memory. Needs only build/release/trireme and Python's standard library.
"""

import argparse
import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from lines import Load, Section, median, percent, run
from step import ROOT

PEER = """
import os, sys, time, pathlib
os.environ["RAYON_NUM_THREADS"] = sys.argv[3]
os.environ["TOKENIZERS_PARALLELISM"] = "true"
from tokenizers import Tokenizer
texts = [f.read_text("utf-8", "replace") for f in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")) if f.is_file()]
peer = Tokenizer.from_file(sys.argv[2])
rates = []
for _ in range(2):
    begin = time.monotonic()
    peer.encode_batch_fast(texts, add_special_tokens=False)
    rates.append(sum(len(t.encode()) for t in texts) * 1e-6 / (time.monotonic() - begin))
print(max(rates))
"""


def tokenize(options, text, folder, *more):
    """MB/s, as the verb itself prints it: reading, encoding and writing, without what starts and ends a program."""
    out = run([options.trireme, "tokenize", text, "--ext", ".py", "--out", folder, "--hold-out", "0", *more])
    return float(re.search(r"([0-9.]+) MB/s on", out)[1])


def peer_rate(options, text, tokenizer, threads):
    if not options.peer_python:
        return "-"
    done = subprocess.run([options.peer_python, "-c", PEER, text, tokenizer, str(threads)], capture_output=True, text=True)
    return round(float(done.stdout), 1) if done.returncode == 0 else "-"


def letters(options, folder, tokenizer):
    """MB/s of a megabyte of one letter after another: words that no table remembers, the worst that merging meets."""
    text = folder / "letters"
    text.mkdir()
    for letter in "ae-=":
        (text / f"{ord(letter)}.py").write_text(letter * 4_000_000)
    return median([tokenize(options, text, folder / "again", "--tokenizer", tokenizer, "--threads", 1) for _ in range(5)])


def encode(options):
    text = sysconfig.get_paths()["stdlib"]
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokenize(options, text, folder, "--vocab", "32768")
        tokenizer = folder / "tokenizer.json"
        for threads in options.threads:
            with Load() as load:
                rates = [tokenize(options, text, folder / "again", "--tokenizer", tokenizer, "--threads", threads)
                         for _ in range(5)]
            lines.append({"text": "standard library", "threads": threads, "MB/s": median(rates), "best": max(rates),
                          "tokenizers MB/s": peer_rate(options, text, tokenizer, threads),
                          "others' CPU": percent(load.others)})
        with Load() as load:
            rate = letters(options, folder, tokenizer)
        lines.append({"text": "runs of one letter, 4 MB each", "threads": 1, "MB/s": rate, "best": "-", "tokenizers MB/s": "-",
                      "others' CPU": percent(load.others)})
    return [Section("Text into tokens", "make bench", lines, "Python's standard library, 32,768 tokens; median of 5.")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--trireme", type=Path, default=ROOT / "build" / "release" / "trireme")
    parser.add_argument("--peer-python", default="", help="a Python that has `tokenizers`")
    for line in encode(parser.parse_args())[0].lines:
        print(line)
