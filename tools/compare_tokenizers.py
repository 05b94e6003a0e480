#!/usr/bin/env python3
"""Compares the ids of `trireme tokenize` with those of the `tokenizers` library, token by token, on any text.

    pip install tokenizers==0.23.3
    python3 tools/compare_tokenizers.py --tokenizer tokenizer.json FOLDER_OR_FILE...
    python3 tools/compare_tokenizers.py --patterns SECONDS [--seed N]      # split patterns (split_patterns.py)

Files that are no UTF-8 are left out: the library cannot read them. Every document is a line of a temporary JSON Lines
file, so the shard and the library see the same texts. Prints the bytes compared and the first difference, if any.
"""
import argparse
import array
import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


def texts_of(paths, limit):
    total = 0
    files = (f for p in map(Path, paths) for f in (sorted(p.rglob("*")) if p.is_dir() else [p]))
    for f in files:
        if total >= limit or not f.is_file() or f.is_symlink():
            continue
        try:
            text = f.read_bytes().decode("utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if text and "\0" not in text:
            total += len(text.encode())
            yield text


def shard(prefix):
    """Documents of a Megatron shard, as lists of ids."""
    raw = prefix.with_suffix(".idx").read_bytes()
    code, sequences = struct.unpack_from("<xxxxxxxxxQBQ", raw)[1:]
    lengths = array.array("i", raw[34:34 + 4 * sequences])
    ids = array.array("H" if code == 8 else "i", prefix.with_suffix(".bin").read_bytes())
    begin = 0
    for n in lengths:
        yield ids[begin:begin + n].tolist()
        begin += n


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("paths", nargs="*")
    p.add_argument("--tokenizer")
    p.add_argument("--patterns", type=float, help="seconds: compares random split patterns on random text")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--limit", type=float, default=1e9, help="bytes of text at most")
    p.add_argument("--trireme", default=str(ROOT / "build/release/trireme"))
    args = p.parse_args()
    if args.patterns:
        from split_patterns import compare

        sys.exit(compare(args.trireme, args.patterns, args.seed, shard))
    if not args.paths or not args.tokenizer:
        p.error("--tokenizer and texts, or --patterns")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        texts = list(texts_of(args.paths, args.limit))
        with open(folder / "texts.jsonl", "w", encoding="utf-8") as out:
            out.writelines(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
        done = subprocess.run([args.trireme, "tokenize", folder / "texts.jsonl", "--tokenizer", args.tokenizer, "--out",
                               folder / "out", "--hold-out", "0"], capture_output=True, text=True)
        if done.returncode == 2 and "--end-of-text" in done.stderr:
            done = subprocess.run([*done.args, "--end-of-text", ""], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr.strip())
        # The file that trireme wrote means the same to the library as the one it read.
        written = Tokenizer.from_file(str(folder / "out" / "tokenizer.json"))
        peer = Tokenizer.from_file(args.tokenizer)
        contents = {t.content: i for i, t in peer.get_added_tokens_decoder().items()}
        config = Path(args.tokenizer).parent / "tokenizer_config.json"
        named = json.loads(config.read_text()).get("eos_token") if config.exists() else None
        named = named.get("content") if isinstance(named, dict) else named
        end = next((contents[e] for e in (named, *ENDS) if e in contents), None)
        differences = tokens = 0
        begin = time.monotonic()
        for t in (peer, written):
            t.encode_special_tokens = True
        for i, (text, got) in enumerate(zip(texts, shard(folder / "out" / "train"), strict=True)):
            want = peer.encode(text, add_special_tokens=False).ids + ([end] if end is not None else [])
            tokens += len(want)
            if i % 50 == 0 and written.encode(text, add_special_tokens=False).ids != want[:len(want) - (end is not None)]:
                sys.exit(f"document {i}: the file that trireme wrote gives the library other ids")
            if got != want:
                differences += 1
                at = next((k for k, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
                if differences == 1:
                    print(f"document {i}, token {at}: {got[at - 3:at + 5]}, the library says {want[at - 3:at + 5]}: "
                          f"{peer.decode(want[at - 3:at + 5])!r}")
    size = sum(len(t.encode()) for t in texts)
    print(json.dumps({"tokenizer": args.tokenizer, "documents": len(texts), "megabytes": round(size / 1e6, 2),
                      "tokens": tokens, "documents_that_differ": differences,
                      "library_seconds": round(time.monotonic() - begin, 1)}))
    sys.exit(differences > 0)


main()
