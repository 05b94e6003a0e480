#!/usr/bin/env python3
"""A published model against transformers: the loss of a fixed text, its token ids, and greedy tokens.

    tests/golden/real_models.py build/release/trireme smollm2

The folder $TRIREME_MODELS/smollm2 (default: ~/.cache/trireme/models/smollm2) is made by tools/real_model, with
transformers' results in expected.json. Without it the test is skipped (exit code 77).
"""

import array
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LOSS_BOUND = 2e-4  # of a loss near 2, in f32: sums in another order

binary, name = os.path.abspath(sys.argv[1]), sys.argv[2]
root = Path(os.environ.get("TRIREME_MODELS") or Path.home() / ".cache/trireme/models")
folder = root / name
if not (folder / "expected.json").exists():
    print(f"skipped: {folder} is not there; make it with tools/real_model {name}")
    sys.exit(77)
expected = json.loads((folder / "expected.json").read_text())
failures = 0


def check(what, want, got, right):
    global failures
    failures += not right
    print(f"{'ok  ' if right else 'FAIL'} {what}: expected {want}, got {got}", flush=True)


def trireme(*words):
    r = subprocess.run([binary, *words], capture_output=True, text=True)
    if r.returncode != 0:
        print(r.stderr)
        sys.exit(f"trireme {words[0]}: exit code {r.returncode}")
    return r.stdout


with tempfile.TemporaryDirectory() as tmp:
    tmp = Path(tmp)
    ids, n = expected["ids"], len(expected["ids"]) - 1
    Path(tmp / "run.toml").write_text(
        f'[model]\nfrom = "{folder}"\n[data]\ntrain = "{tmp}/ids.bin"\nvalid = "{tmp}/ids.bin"\nseq_len = {n}\n'
        f'[batch]\nglobal = 1\nmicro = 1\n[precision]\ncompute = "f32"\n[train]\ndir = "{tmp}/none"\n')
    array.array("H", ids).tofile(open(tmp / "ids.bin", "wb"))
    result = json.loads(trireme("eval", str(tmp / "run.toml"), "--json"))
    check("loss", expected["loss"], result["loss"], abs(result["loss"] - expected["loss"]) < LOSS_BOUND)

    (tmp / "text.jsonl").write_text(json.dumps({"text": expected["text"]}) + "\n")
    trireme("tokenize", str(tmp / "text.jsonl"), "--tokenizer", str(folder / "tokenizer.json"), "--out",
            str(tmp / "enc"), "--hold-out", "0")
    got = array.array("H")
    got.frombytes((tmp / "enc/train.bin").read_bytes())
    check("token ids", ids, got.tolist()[: len(ids)], got.tolist()[: len(ids)] == ids)

    line = json.loads(trireme("generate", str(tmp / "run.toml"), "--prompt", expected["prompt"], "--tokens",
                              str(len(expected["greedy"])), "--temperature", "0", "--json"))
    check("greedy text", expected["greedy_text"], line["text"], line["text"] == expected["greedy_text"])
sys.exit(1 if failures else 0)
