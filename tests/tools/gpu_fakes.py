"""Programs that stand for trireme's, CUDA's tools and PyTorch's scripts, for the tests of tools/gpu_check."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
loader = importlib.machinery.SourceFileLoader("gpu_check", str(TOOLS / "gpu_check"))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)

from gpu_checks import calls, check, environment  # noqa: E402

PROBLEMS = {
    "zero": "zero n=1",
    "matmul": "matmul m=1 n=1 k=1",
    "attention": """bound bf16 nmse=1 worst=1
        attention s=300 h=2 d=64 dtype=bf16
        attention s=100 h=1 d=64 dtype=bf16 for=test
        attention s=100 h=1 d=37 dtype=bf16
        attention s=8 h=1 d=40 dtype=f16
        attention s=9 h=1 d=80 dtype=bf16
        attention s=9 h=1 d=128 dtype=bf16
        attention s=9 h=1 d=192 dv=128 dtype=bf16
        attention s=9 h=1 d=256 dtype=bf16
        attention s=9 h=1 d=64 dtype=f32
        attention s=9 h=1 d=64 dtype=bf16 for=perf""",
    "attention_backward": """bound bf16 nmse=1 worst=1
        attention_backward s=200 h=1 d=64 dtype=bf16
        attention_backward s=120 h=1 d=64 dtype=bf16
        attention_backward s=9 h=1 d=96 dv=128 dtype=bf16""",
}
GPU = {
    "attention": """bound bf16 nmse=1 worst=1
        attention b=4 s=1024 h=2 d=64 dtype=bf16 for=perf
        attention b=4 s=512 h=2 d=64 dtype=bf16 for=perf
        attention b=1 s=8192 h=2 d=64 dtype=bf16 for=perf""",
    "attention_backward": "attention_backward b=4 s=1024 h=2 d=64 dtype=bf16 for=perf",
    "matmul": "matmul m=2 n=3 k=4 dtype=bf16 trans_b=1 for=perf",
    "matmul_small_model": "matmul m=5 n=3 k=4 dtype=bf16 for=perf  # another file of the same op",
    "layernorm": "layernorm n=7 c=8 dtype=bf16 for=perf",
    "quantise": "quantise n=4 c=4 dtype=bf16 for=perf",
}
STEP = """case $* in *sm90*) kernel=sm_90a;; *) kernel=mma.sync;; esac
    echo '{"kernels": [{"op": "attention", "kernel": "'$kernel'"}, {"op": "attention_backward", "kernel": "'$kernel'"},
    {"op": "matmul", "kernel": "cuBLASLt"}, {"op": "matmul", "kernel": "simt"}],
    "step_s": [0.1, 0.1], "tokens": 6, "flops_per_step": 1, "loss": %s, "graphs": "",
    "ops": [], "memory": {"grads": {"booked": 5, "met": %s}, "total": {"booked": 7, "met": 7}}}' | tr -d '\\n'; echo"""
# Writes the file of --op-events-out.
EVENTS = """case $* in *--op-events-out*) while [ $1 != --op-events-out ]; do shift; done; cat > $2 <<'E'
{"kind":"step","wall_ms":100.0,"ops_ms":31.0,"gap_ms":69.0}
{"kind":"op","op":"matmul","shape":"[1, 2]","kernel":"","count":3,"ms":20.0,"tflops":500,"gb_per_s":9,"of_peak":0.5,"bound":"flops"}
{"kind":"op","op":"matmul","shape":"[3]","kernel":"x","count":1,"ms":10.0,"tflops":1,"gb_per_s":2,"of_peak":0.1,"bound":"bytes"}
{"kind":"op","op":"add","shape":"[3]","kernel":"","count":2,"ms":1.0,"tflops":1,"gb_per_s":2,"of_peak":0.1,"bound":"bytes"}
E
;; esac
"""
TRIREME = """if [ $1 = bench ]; then echo x > $5; echo written; else echo '{"best": {"step_s": %s}}'; fi"""
# Prints every line of the files that it was given, as `trireme_ops perf` and `test --verbose` do.
OPS = """
mode=$1; shift
while [ $# -gt 0 ]; do
  case $1 in --problems) folder=$2;; --op) ops=$2;; --device) device=$2;; esac; shift
done
echo "$mode $ops on $device, libraries $LD_LIBRARY_PATH" >> FOLDER/asked
echo "device of a test"; echo "header"
for op in $(echo $ops | tr , ' '); do
  grep "^ *$op " $folder/$op.txt | sed 's/#.*//; s/^ *//; s/ *$//' | while read -r line; do
    if [ $mode = perf ]; then echo "    2.0000     1.0000     4000.0     500.0   mma  $line"
    else BEFORE; echo "  $line threads=1 o: nmse 1 worst 1"; fi
  done || exit 1
done
AFTER
echo "$ops is well"
"""
NCU = """#!/bin/sh
echo "ncu $*, libraries $LD_LIBRARY_PATH" >> FOLDER/asked
if [ -f FOLDER/refuse ]; then echo "==ERROR== ERR_NVGPUCTRPERM"; exit 1; fi
while [ "$1" != env ]; do case $1 in regex:*) kernel=$1;; esac; shift; done
"$@" >/dev/null
echo '"ID","Kernel Name","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"'
echo '"","","ns","%"'
echo "\\"0\\",\\"$kernel\\",\\"2500\\",\\"71.5\\""
exit 9
"""
SANITIZER = """#!/bin/sh
echo "sanitizer $2, libraries $LD_LIBRARY_PATH" >> FOLDER/asked
kind=$2
code=0
while [ $# -gt 0 ]; do case $1 in --error-exitcode) code=$2;; env|*/bin/trireme_ops) break;; esac; shift; done
if [ -f FOLDER/no_env ] && [ "$1" = env ]; then echo "no process was attached"; exit 0; fi
"$@"
case "$kind $*" in "racecheck "*"--op matmul"*) echo "========= Error: Race reported"; exit $code;; esac
echo "========= ERROR SUMMARY: 0 errors"; echo more
"""
SMI = """#!/bin/sh
echo "smi, libraries $LD_LIBRARY_PATH" >> FOLDER/asked
echo $$ >> FOLDER/smi_pids
case $* in *-l*) exec sleep 60;; esac
echo "a GPU of a test"
"""
PEER = """import os, sys, json
open("FOLDER/asked", "a").write(f"peer, libraries {os.environ.get('LD_LIBRARY_PATH', '')}\\n")
print(json.dumps({"tokens_per_s": 50, "gflops_per_s": 1, "step_s": 0.12, "torch": "2"}))
sys.stderr.write("warning: as libraries do\\n")
"""
PEER_ATTENTION = """print("a GPU\\nTFLOP/s")
    print("   10.0    20.0       -       -  b=4 s=1024 h=2 kv=2 d=64 dv=64 causal=1")"""
PEER_MATMUL = """print("a GPU\\nTFLOP/s")
    print("     8.0  m=2 n=3 k=4 dtype=bf16 trans_b=1")"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class Fakes(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu_check_test."))
        self.addCleanup(shutil.rmtree, self.folder)
        for name, text in (("ncu", NCU), ("compute-sanitizer", SANITIZER), ("nvidia-smi", SMI)):
            program(self.folder / "tools" / name, self.here(text))
        environ = {**os.environ, "PATH": f"{self.folder}/tools:{os.environ['PATH']}"}
        environ.pop("LD_LIBRARY_PATH", None)
        self.read_ahead = environment.read_ahead
        for patch in (mock.patch.dict(os.environ, environ, clear=True), mock.patch.multiple(check, SPARE=0, LEAST=0.1),
                      mock.patch.object(environment, "read_ahead", return_value=[]),
                      mock.patch.object(environment, "cuda_folders", return_value=[])):
            patch.start()
            self.addCleanup(patch.stop)

    def here(self, text):
        return text.replace("FOLDER", str(self.folder))

    def pretend(self, before=":", after=":", loss=1, met=5, step=None, predicted=0.104, **others):
        """The packed programs and their data. `before` and `after`: commands of trireme_ops in front of each test line and
        after all; `others`: whole programs by name."""
        tree = self.folder / "tree"
        for name in ("test_golden", *(f"test_parity_{p}" for p in calls.PARITY)):
            program(self.folder / "bin" / name, self.here(f"echo {name} on $TRIREME_TEST_DEVICE | tee -a FOLDER/asked"))
        program(self.folder / "bin/trireme_ops", self.here(OPS).replace("BEFORE", before).replace("AFTER", after))
        program(self.folder / "bin/trireme_step_ops",
                self.here('echo "step_ops $*, libraries $LD_LIBRARY_PATH" >> FOLDER/asked\n') + (step or STEP % (loss, met)) +
                "\n" + EVENTS)
        program(self.folder / "bin/trireme", TRIREME % predicted)
        for name, text in others.items():
            program(self.folder / "bin" / name, self.here(text))
        for place, files in (("problems", PROBLEMS), ("gpu", GPU)):
            (tree / "tests/ops" / place).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (tree / "tests/ops" / place / f"{name}.txt").write_text(text + "\n")
        (tree / "tools").mkdir(exist_ok=True)
        (tree / "tools/peer_step.py").write_text(self.here(PEER))
        for name, body in (("peer_attention", PEER_ATTENTION), ("peer_matmul", PEER_MATMUL)):
            real = (TOOLS / f"{name}.py").read_text()
            (tree / f"tools/{name}.py").write_text(real.replace("\n    main()\n", f"\n    {body}\n"))

    def call(self, name, what=None, seconds=60, torch=False, back=None, planned=None, home=True):
        """Runs a call. Returns (exit code, {step: (result, text)}, folder of logs)."""
        out = self.folder / f"out-{name}"
        with mock.patch.object(environment, "have_torch", return_value=torch), \
                contextlib.redirect_stdout(io.StringIO()) as said, \
                mock.patch.dict(gpu_check.CALLS, {name: (what, planned or seconds)} if what else {}):
            code = gpu_check.run(out, name, None, self.folder if home else None, self.folder / "state", seconds, back)
        self.said = said.getvalue()
        rows = [line.split("|")[1:-1] for line in (out / "table.md").read_text().split("\n\n")[0].splitlines()[2:]]
        names = [r[0].strip() for r in rows]
        self.assertEqual(len(names), len(set(names)), names)  # each step's result is found by its name
        return code, {r[0].strip(): (r[1].strip(), r[3].strip()) for r in rows}, out

    def asked(self):
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []
