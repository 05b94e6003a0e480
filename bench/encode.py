#!/usr/bin/env python3
"""Times `trireme tokenize` on text, and the `tokenizers` library beside it where it is installed: MB/s, one JSON line each.

    python3 bench/encode.py --threads 1 2                     # Python's standard library, a tokenizer learned from it
    python3 bench/encode.py --text FOLDER --tokenizer tokenizer.json --threads 1

The text is read once before, so that files come from memory. Needs only build/release/trireme and Python's standard
library; run it on a machine that does nothing else: bench/README.md.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tokenize(args, folder, *more):
    command = [args.trireme, "tokenize", args.text, "--out", folder, "--hold-out", "0", *more]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"trireme ended with {done.returncode}: {done.stderr.strip()}")
    return float(re.search(r"([0-9.]+) MB/s on", done.stdout)[1])


def peer_rate(args, tokenizer, threads):
    """MB/s of the library's encode_batch, or None where it is not installed."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    files = sorted(Path(args.text).rglob("*.py"))
    texts = [f.read_text("utf-8", "replace") for f in files if f.is_file()]
    peer = Tokenizer.from_file(str(tokenizer))
    begin = time.monotonic()
    peer.encode_batch_fast(texts, add_special_tokens=False)
    return sum(len(t.encode()) for t in texts) * 1e-6 / (time.monotonic() - begin)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--text", default=sysconfig.get_paths()["stdlib"], help="folder of .py files")
    p.add_argument("--tokenizer", help="default: 32,768 tokens learned from the text")
    p.add_argument("--threads", type=int, nargs="+", default=[1])
    p.add_argument("--runs", type=int, default=3, help="the median is given")
    p.add_argument("--peer", action="store_true", help="time the `tokenizers` library too")
    p.add_argument("--trireme", default=str(ROOT / "build/release/trireme"))
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokenizer = args.tokenizer
        if not tokenizer:
            tokenize(args, folder / "learned", "--ext", ".py", "--vocab", "32768")
            tokenizer = folder / "learned" / "tokenizer.json"
        for threads in args.threads:
            rates = [tokenize(args, folder / "out", "--ext", ".py", "--tokenizer", tokenizer, "--threads", threads)
                     for _ in range(args.runs)]
            line = {"bench": "encode", "text": args.text, "threads": threads,
                    "megabytes_per_s": round(statistics.median(rates), 1), "all": rates}
            if args.peer and (peer := peer_rate(args, tokenizer, threads)):
                line["tokenizers_megabytes_per_s"] = round(peer, 1)
            print(json.dumps(line), flush=True)


main()
