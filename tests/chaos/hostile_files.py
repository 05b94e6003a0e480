#!/usr/bin/env python3
"""External files that never end, or that control the terminal: pipes in place of files, sparse files of 4 TiB,
control bytes in names and values. Each program must end in time with the right exit code, name the file, and print no
control byte. A few seconds."""

import struct
from pathlib import Path

from chaos import *

RUN = """
[model]
vocab = 61
layers = 1
hidden = 16
heads = 2
ffn = 32
[data]
train = "t.bin"
valid = []
seq_len = 16
[batch]
global = 2
micro = 2
[precision]
compute = "f32"
[optimizer]
warmup = 1
[train]
steps = 2
threads = 1
tensorboard = false
checkpoint_every = 1
dir = "r"
[cluster]
file = "cluster.toml"
"""
CLUSTER = """
name = "one"
peak.f32 = 1e12
peak.bf16 = 1e12
memory_bytes = 17179869184
memory_bandwidth = 1e11
"""
HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b0m\u202e"


def run(*words, timeout=20):
    p = subprocess.Popen([PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = p.communicate(timeout=timeout)
        return p.returncode, out + err
    except subprocess.TimeoutExpired:
        p.kill()
        out, err = p.communicate()
        return 'no end', out + err


def check(what, ok, said):
    expect(what, 'right', 'right' if ok else said)


def with_pipe(file, what, codes, *words, says=None):
    """A named pipe without a writer in the file's place."""
    file = Path(file)
    kept = file.with_name("kept-aside")
    os.rename(file, kept)
    os.mkfifo(file)
    code, text = run(*words)
    os.replace(kept, file)
    wanted = (says or file.name).encode()
    check(f"{what}: a pipe instead of {file}", code in codes and wanted in text, (code, text[-300:]))


def control_bytes(text):
    """Bytes that a terminal obeys: C0 but for line ends and tabs, DEL, and C1 or direction marks in UTF-8."""
    bad = {c for c in text if (c < 32 and c not in b"\n\t") or c == 127}
    return bad | {c for c in text.decode(errors="replace") if "\x80" <= c <= "\x9f" or c in "\u202e\u2066"}


def shows_no_control_byte(what, *words):
    code, text = run(*words)
    check(f"{what} is printed escaped", code != "no end" and not control_bytes(text) and b"red" in text,
          (code, control_bytes(text), text[-300:]))


def safetensors(path, entries, data_bytes, metadata=None):
    header = {**({"__metadata__": metadata} if metadata else {}), **entries}
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(f.tell() + data_bytes)  # a hole


def pipes():
    hf = ["--set", "model.from=hf", "--set", "train.dir=other"]
    for file in ("hf/model.safetensors", "hf/config.json"):
        for verb, more in (("train", []), ("eval", ["--data", "t.bin"])):
            with_pipe(file, verb, [2], verb, "run.toml", *hf, *more)
    with_pipe("hf/tokenizer.json", "generate", [2], "generate", "run.toml", *hf)
    with_pipe("t.bin", "train", [2], "train", "run.toml", "--set", "train.dir=other")
    with_pipe("run.toml", "train", [2], "train", "run.toml")
    with_pipe("cluster.toml", "plan", [2], "plan", "run.toml")
    with_pipe("tok.json", "tokenize", [2], "tokenize", "text.txt", "--tokenizer", "tok.json", "--out", "enc")
    newest = sorted(Path("r/checkpoints").glob("step-????????"))[-1]
    for file in sorted(newest.iterdir()):
        # The checkpoint is damaged; the run resumes from the one before it.
        shutil.rmtree("again", True)
        shutil.copytree("r", "again")
        copy = Path("again") / file.relative_to("r")
        os.remove(copy)
        os.mkfifo(copy)
        code, text = run("train", "run.toml", "--set", "train.dir=again")
        check(f"train: a pipe instead of a checkpoint's {file.name}", code == 0 and b"passed over" in text,
              (code, text[-300:]))


def sparse():
    tib = 1 << 40
    safetensors("big.safetensors", {"t": {"dtype": "F32", "shape": [tib], "data_offsets": [0, 4 * tib]}}, 4 * tib)
    code, text = run("inspect", "big.safetensors", timeout=10)
    check("inspect of a file of 4 TiB", code == 0 and b"1099511627776" in text, (code, text[-300:]))
    shutil.copytree("hf", "big")
    os.replace("big.safetensors", "big/extra.safetensors")
    code, text = run("inspect", "big", timeout=10)
    check("inspect of a folder with it", code == 0, (code, text[-300:]))
    for name in ("big.bin", "big.jsonl", "big.json", "big.toml"):
        with open(name, "wb") as f:
            f.truncate(4 * tib)
        code, text = run("inspect", name, timeout=10)
        check(f"inspect {name} of 4 TiB", code in (0, 2) and b"big." in text, (code, text[-300:]))


def control():
    one = {HOSTILE: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    safetensors("names.safetensors", one, 4, {HOSTILE: HOSTILE})
    shows_no_control_byte("a tensor's name", "inspect", "names.safetensors")
    shutil.copytree("hf", "named")
    weights = Path("named/model.safetensors").read_bytes()
    end = 8 + struct.unpack("<Q", weights[:8])[0]
    header, data = json.loads(weights[8:end]), weights[end:]
    header[HOSTILE] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    text = json.dumps(header).encode()
    Path("named/model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data + bytes(4))
    shows_no_control_byte("a tensor's name in an error", "eval", "run.toml", "--set", "model.from=named", "--set",
                          "train.dir=other", "--data", "t.bin")
    Path("red.toml").write_text(RUN.replace('dir = "r"', 'dir = "r\\u001b[31mred"').replace("steps = 2", "steps = 1"))
    shows_no_control_byte("train.dir", "train", "red.toml")
    shows_no_control_byte("a run folder", "inspect", "r\x1b[31mred")
    shows_no_control_byte("a path that is not there", "inspect", HOSTILE)
    shows_no_control_byte("an argument", "train", "run.toml", "--set", f"train.{HOSTILE}=3")
    shows_no_control_byte("an unknown option", "train", "run.toml", f"--{HOSTILE}")
    shows_no_control_byte("an unknown subcommand", HOSTILE)
    shows_no_control_byte("a value", "train", "run.toml", "--set", f"data.order={HOSTILE}")
    Path("red-cluster.toml").write_text(CLUSTER.replace('"one"', '"\\u001b[31mred\\u009b"'))
    shows_no_control_byte("a cluster's name", "inspect", "red-cluster.toml")
    shows_no_control_byte("a cluster's name in a forecast", "estimate", "--roofline", "--model", "hf/config.json",
                          "--cluster", "red-cluster.toml")
    Path("red.jsonl").write_text(json.dumps({"step": 1, "loss": HOSTILE, HOSTILE: 1}) + "\n")
    shows_no_control_byte("metrics", "inspect", "red.jsonl")
    config = json.loads(Path("hf/config.json").read_text())
    for key, value in ((HOSTILE, 1), ("hidden_act", HOSTILE), ("model_type", HOSTILE)):
        os.makedirs("config", exist_ok=True)
        Path("config/config.json").write_text(json.dumps({**config, key: value}))
        shows_no_control_byte(f"a key or value of config.json ({key.encode()[:12]})", "inspect", "config")


Path("run.toml").write_text(RUN)
Path("cluster.toml").write_text(CLUSTER)
Path("t.bin").write_bytes(struct.pack("<400H", *[(7 * i) % 61 for i in range(400)]))
Path("text.txt").write_text("the cat sat on the mat\n" * 50)
for words in (["train", "run.toml"], ["convert", "run.toml", "--to", "hf"],
              ["tokenize", "text.txt", "--vocab", "260", "--out", "tok"]):
    code, text = run(*words, timeout=60)
    if code != 0:
        sys.exit(f"{words}: {text.decode(errors='replace')}")
shutil.copy("tok/tokenizer.json", "hf/tokenizer.json")
shutil.copy("tok/tokenizer.json", "tok.json")
pipes()
sparse()
control()
done()
