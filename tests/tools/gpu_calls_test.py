"""The calls of tools/gpu_check by programs that pretend: what runs, in which order, and what a failure changes."""
import json
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from gpu_fakes import PROBLEMS, STEP, TOOLS, Fakes, environment, program  # noqa: E402
from gpu_checks import measure, problems, ranks, sanitize, sm90  # noqa: E402

SM90_CLASSES = {  # lines of PROBLEMS per class
    "fwd-64": ["attention s=300 h=2 d=64 dtype=bf16", "attention s=100 h=1 d=64 dtype=bf16 for=test",
               "attention s=8 h=1 d=40 dtype=f16"],
    "bwd-64": ["attention_backward s=200 h=1 d=64 dtype=bf16", "attention_backward s=120 h=1 d=64 dtype=bf16"],
    "128": ["attention s=9 h=1 d=128 dtype=bf16", "attention_backward s=9 h=1 d=96 dv=128 dtype=bf16"],
    "80+96": ["attention s=9 h=1 d=80 dtype=bf16"], "192-128": ["attention s=9 h=1 d=192 dv=128 dtype=bf16"],
    "256": ["attention s=9 h=1 d=256 dtype=bf16"]}
HANG = 'case "$line" in *"s=120 h=1 d=64"*) [ $device = cuda-sm90 ] && exec sleep 60;; esac'


class First(Fakes):
    def test_all_is_well(self):
        self.pretend()
        back = self.folder / "back"
        _, rows, out = self.call("first", torch=True, back=back)
        bad = {name: row for name, row in rows.items() if row[0] != "passed"}
        self.assertEqual(bad, {})
        order = list(rows)
        for earlier, later in (("machine", "device"), ("device", "ops:matmul"), ("ops:attention_backward", "sm90:fwd-64"),
                               ("sm90:256", "golden"), ("grad", "train-gpt2-124m-auto"),
                               ("train-gpt2-124m-auto", "train-gpt2-124m-sm90"),
                               ("train-gpt2-124m-sm90", "train-gpt2-124m-graphs"),
                               ("train-gpt2-124m-graphs", "train-gpt2-124m-timed+sm90"),
                               ("train-gpt2-124m-timed+sm90", "peer-gpt2-124m"),
                               ("peer-gpt2-124m", "ratio-gpt2-124m-timed+sm90")):
            self.assertLess(order.index(earlier), order.index(later), (earlier, later))
        self.assertIn("1.200 times PyTorch's tokens/s", rows["ratio-gpt2-124m-sm90"][1])
        self.assertIn("test_golden on cuda", rows["golden"][1])
        for name, lines in SM90_CLASSES.items():
            staged = "".join(p.read_text() for p in sorted((out / f"problems/sm90-{name}").glob("*.txt")))
            self.assertEqual([x for x in staged.splitlines() if not x.startswith("bound")], lines, name)
        left = json.loads((self.folder / "state/first.json").read_text())
        self.assertEqual({n: told["ended"] for n, told in left["sm90"].items()}, dict.fromkeys(SM90_CLASSES, "passed"))
        self.assertEqual(left["steps"]["train-gpt2-124m-auto"]["step_s"], [0.1, 0.1])
        self.assertNotIn("ops", left["steps"]["train-gpt2-124m-auto"])
        self.assertEqual({p.name for p in back.iterdir()}, {"table.md", "all.tar.xz"})
        # Only the packed programs have the packed libraries.
        libraries = {line.split()[0]: line.rsplit("libraries ", 1)[1] for line in self.asked() if ", libraries" in line}
        self.assertEqual(libraries["test"], f"{self.folder}/lib")
        self.assertEqual(libraries["step_ops"], f"{self.folder}/lib")
        self.assertEqual((libraries["smi,"], libraries["peer,"]), ("", ""))

    def test_without_a_gpu_it_ends_at_once(self):
        self.pretend(trireme_ops="echo 'FAIL zero: no GPU here'; exit 1")
        code, rows, _ = self.call("first")
        self.assertEqual((code, list(rows)), (1, ["machine", "libraries", "versions", "device"]))
        self.assertEqual(rows["device"], ("failed (1)", "FAIL zero: no GPU here"))
        self.assertIn("gpu_check: no GPU that works was found; see ", self.said)

    def test_a_class_that_hangs_costs_its_class_and_the_ways_that_need_it(self):
        self.pretend(before=HANG)
        with mock.patch.object(sm90, "CAP", 1):
            _, rows, _ = self.call("first")
        self.assertIn("stopped after", rows["sm90:bwd-64"][0])
        self.assertEqual(rows["sm90:fwd-64"][0], "passed")
        self.assertEqual(rows["train-gpt2-124m-sm90"][0], "left out")
        self.assertEqual(rows["train-gpt2-124m-timed+sm90"][0], "left out")
        self.assertEqual(rows["train-gpt2-124m-graphs"][0], "passed")
        self.assertEqual(rows["peer-gpt2-124m"][0], "left out")
        self.assertFalse([x for x in self.asked() if "train.attention=sm90" in x])
        left = json.loads((self.folder / "state/first.json").read_text())["sm90"]["bwd-64"]
        self.assertEqual((left["op"], left["line"]), ("attention_backward", "attention_backward s=120 h=1 d=64 dtype=bf16"))

    def test_what_differs_is_told(self):
        self.pretend(step=f"case $* in *graphs=on*) {STEP % (2, 6)};; *) {STEP % (1, 6)};; esac")
        _, rows, _ = self.call("first")
        self.assertEqual(rows["graphs-gpt2-124m"][0], "failed (losses differ)")
        self.assertEqual(rows["memory-gpt2-124m-auto"], ("failed", "grads: booked 5, met 6"))
        self.assertIn("attention mma.sync, attention_backward mma.sync, matmul cuBLASLt+simt", rows["train-gpt2-124m-auto"][1])

    def test_a_way_that_other_kernels_took_fails(self):
        self.pretend(step=(STEP % (1, 5)).replace("kernel=sm_90a", "kernel=mma.sync"))
        _, rows, _ = self.call("first")
        self.assertEqual(rows["train-gpt2-124m-auto"][0], "passed")
        self.assertEqual(rows["train-gpt2-124m-sm90"],
                         ("failed (what it said)", "ValueError: attention was taken by ['mma.sync'], not by sm_90a"))
        self.assertNotIn("sm90-gpt2-124m", rows)


class Second(Fakes):
    def results(self, **of_classes):
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        told = {name: {"ended": "passed"} for name in SM90_CLASSES} | of_classes
        steps = {"train-gpt2-124m-auto": {"step_s": [0.1], "loss": 1}}
        (state / "first.json").write_text(json.dumps({"steps": steps, "sm90": told}))

    def test_all_is_well(self):
        self.pretend()
        self.results()
        code, rows, out = self.call("second", torch=True)
        self.assertEqual({n: r for n, r in rows.items() if r[0] != "passed"}, {})
        self.assertEqual(code, 0)
        order = [n for n in rows if n in ("events-gpt2-124m-sm90", "ncu:norm_forward", "perf:attention sm90", "peer:attention",
                                          "perf:matmul", "bench", "forecast-gpt2-124m", "train-llama-1b-timed+sm90",
                                          "peer-llama-1b", "ratio-llama-1b-timed+sm90", "racecheck:smallest attention")]
        self.assertEqual(len(order), 11)
        self.assertEqual(order[:10], ["events-gpt2-124m-sm90", "ncu:norm_forward", "perf:attention sm90", "peer:attention",
                                      "perf:matmul", "bench", "forecast-gpt2-124m", "train-llama-1b-timed+sm90",
                                      "peer-llama-1b", "ratio-llama-1b-timed+sm90"])
        self.assertIn("104.0 ms predicted, 100.0 ms measured: +4.0 %", rows["forecast-gpt2-124m"][1])
        self.assertNotIn("train-gpt2-124m-auto", rows)  # the first call measured it
        table = (out / "table.md").read_text()
        self.assertIn("| matmul | 30.00 | 30.0 | 4 | 30.00 | 30.0 | 4 |", table)  # two shapes are one row
        self.assertIn("| all ops | 31.00 | 31.0 |", table)
        self.assertIn("| outside ops | 69.00 | 69.0 |", table)
        self.assertIn("| matmul | [1, 2] |  | 20.00 | 3 | 500 | 9 | 50 (flops) |", table)
        self.assertIn("| regex:attention_forward_sm90 | 2.5 | 71.5 |".replace("regex:", ""), table)
        self.assertEqual(len(re.findall(r"^\| \w+ \| 2\.5 \| 71\.5 \|", table, re.M)), 10)
        # 2 * 4 * 1024^2 * 2 / 2 * 128 FLOPs in 2 ms are 0.54 TFLOP/s; cuDNN's are 10 of the peer's line.
        self.assertIn("| forward | b=4 s=1024 h=2 kv=2 d=64 dv=64 causal=1 | 1 | 1 | 10 | - | 0.05 |", table)
        self.assertIn("| backward | b=4 s=1024 h=2 kv=2 d=64 dv=64 causal=1 | 1 | 1 | 20 | - | 0.07 |", table)
        self.assertIn("| m=2 n=3 k=4 dtype=bf16 trans_b=1 | 4 | 8 | 0.50 |", table)
        self.assertIn("| m=5 n=3 k=4 dtype=bf16 | 4 | - | - |", table)
        self.assertIn("| layernorm | n=7 c=8 dtype=bf16 | 2000.0 | 500 |", table)
        self.assertNotIn("s=512", table)
        self.assertNotIn("s=8192", table)
        asked = self.asked()
        self.assertEqual(sum("--op-events" in x for x in asked), 2)
        self.assertFalse([x for x in asked if x.startswith("perf") and "quantise" in x])
        tools = [x for x in asked if x.startswith(("ncu", "sanitizer"))]
        self.assertGreater(len(tools), 10)
        self.assertFalse([x for x in tools if not x.endswith("libraries ")], "tools keep the machine's own libraries")
        under = [x for x in asked if x.startswith("test attention") and "cuda-sm90" in x]
        self.assertEqual(len(under), 4)
        self.assertTrue(all(x.endswith(f"{self.folder}/lib") for x in under))

    def test_a_failed_class_turns_profiles_into_sanitizers_of_its_line(self):
        line = SM90_CLASSES["bwd-64"][1]
        self.pretend()
        self.results(**{"bwd-64": {"ended": "stopped after 12 s", "op": "attention_backward", "line": line}})
        _, rows, out = self.call("second")
        for kind in ("memcheck", "synccheck", "racecheck"):
            self.assertEqual(rows[f"{kind}:bwd-64 attention_backward"], ("passed", "========= ERROR SUMMARY: 0 errors"))
        staged = out / "problems/sanitize-bwd-64-attention_backward/attention_backward.txt"
        self.assertEqual(staged.read_text().splitlines(), ["bound bf16 nmse=1 worst=1", line])
        self.assertFalse([n for n in rows if n.startswith(("ncu", "perf:attention")) or "sm90" in n])
        self.assertEqual(rows["train-llama-1b-timed"][0], "passed")
        self.assertIn("events-gpt2-124m-auto", rows)
        self.assertIn("perf:matmul", rows)

    def test_a_failed_class_of_other_widths_leaves_the_models_theirs(self):
        self.pretend()
        self.results(**{"256": {"ended": "failed (1)", "op": "attention", "line": SM90_CLASSES["256"][0]}})
        _, rows, _ = self.call("second")
        self.assertEqual(rows["memcheck:256 attention"][0], "passed")
        self.assertEqual(rows["train-llama-1b-timed+sm90"][0], "passed")
        self.assertFalse([n for n in rows if n.startswith("ncu")])

    def test_without_the_first_call_s_results_it_tests_the_kernels_itself(self):
        for text in (None, "{", '{"steps": 3}'):
            with self.subTest(text):
                self.pretend()
                (self.folder / "state").mkdir(exist_ok=True)
                if text:
                    (self.folder / "state/first.json").write_text(text)
                with mock.patch.object(measure, "PROFILED", []), mock.patch.object(measure, "products"):
                    _, rows, _ = self.call("second")
                self.assertEqual(rows["first-call"][0], "left out")
                self.assertEqual((rows["again:fwd-64"][0], rows["again:bwd-64"][0]), ("passed", "passed"))
                self.assertEqual(rows["train-gpt2-124m-auto"][0], "passed")
                self.assertEqual(rows["forecast-gpt2-124m"][0], "passed")
                self.assertEqual(rows["train-llama-1b-timed+sm90"][0], "passed")

    def test_a_plan_that_does_not_fit_or_is_off_is_told(self):
        self.results()
        with mock.patch.object(measure, "PROFILED", []), mock.patch.object(measure, "products"), \
                mock.patch.object(measure, "attention"):
            self.pretend(predicted=0.094)
            _, rows, _ = self.call("second")
            self.assertEqual(rows["forecast-llama-1b"][0], "beyond 5 %")
            self.pretend(trireme="if [ $1 = bench ]; then echo x | tee $5; else echo '{\"best\": null}'; fi")
            _, rows, _ = self.call("second")
        self.assertEqual(rows["forecast-llama-1b"][0], "failed")
        self.assertIn("does not fit", rows["forecast-llama-1b"][1])

    def profiled(self):
        self.pretend()
        return self.call("second", lambda c: (measure.profile(c, measure.PROFILED, "gpt2-124m"), c.step("after", ["true"])))

    def test_ncu_that_is_refused_or_missing_leaves_the_other_parts(self):
        (self.folder / "refuse").touch()
        _, rows, _ = self.profiled()
        self.assertEqual(list(rows), ["ncu:attention_forward_sm90", "ncu", "after"])  # refused once, it is not asked again
        self.assertIn("does not permit", rows["ncu"][1])
        with mock.patch.object(environment, "find_tool", return_value=None):
            _, rows, _ = self.profiled()
        self.assertEqual(rows["ncu"], ("left out", "ncu is not on this machine"))
        self.assertEqual(rows["after"][0], "passed")


class Others(Fakes):
    def test_third(self):
        self.pretend()
        _, rows, out = self.call("third")
        for name in ("parity:fp8", "parity:pipeline", "graphs:golden", "graphs:parity_recompute", "train-gpt2-124m-fp8",
                     "fp8-gpt2-124m", "train-gpt2-1.5b-auto", "forecast-gpt2-1.5b", "perf:quantise", "perf:attention",
                     "again:128", "perf:attention mma", "perf:attention sm90"):
            self.assertEqual(rows[name][0], "passed", name)
        self.assertIn("test_golden on cuda-graphs", rows["graphs:golden"][1])
        self.assertIn("| forward | b=1 s=8192 h=2 kv=2 d=64 dv=64 causal=1 | 9 | 9 |", (out / "table.md").read_text())
        measured = {name: (out / f"problems/perf-{name}/attention.txt").read_text() for name in ("attention", "other")}
        self.assertIn("s=8192", measured["attention"])
        self.assertIn("s=512", measured["other"])
        self.assertNotIn("s=1024", measured["attention"] + measured["other"])  # the second call measures those
        self.assertEqual(rows["nccl-zero0"][0], "left out")
        self.assertIn("pack --nccl", rows["nccl-zero0"][1])

    TRAIN = r"""#!/bin/sh
[ $1 = train ] || exit 1
dir=$(sed -n 's/train.dir = "\(.*\)"/\1/p' $2); mkdir -p $dir
case $2 in *nccl.toml) echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR, $NCCL_MULTI_RANK_GPU_ENABLE $NCCL_SOCKET_IFNAME" \
    "$LD_LIBRARY_PATH" >> FOLDER/asked; [ $RANK = 0 ] || exit 0; loss=%s;; *) loss=2.0;; esac
for i in $(seq %d); do echo "{\"loss\": $loss}"; done > $dir/metrics.jsonl
echo trained"""

    def two_ranks(self, loss, written=ranks.STEPS):
        self.pretend(trireme=self.TRAIN % (loss, written))
        program(self.folder / "nccl/libnccl.so.2", "")
        return self.call("third", lambda c: ranks.two_ranks(c, 3))[1]

    def test_two_nccl_ranks_on_one_gpu(self):
        rows = self.two_ranks("2.000001")
        self.assertEqual(rows["nccl-zero3"][0], "passed", rows)
        self.assertIn("20 steps by two NCCL ranks on one GPU, losses at most 5.0e-07", rows["nccl-zero3"][1])
        self.assertEqual({x.split(" at ")[0] for x in self.asked()} & {"rank 0 of 2", "rank 1 of 2"},
                         {"rank 0 of 2", "rank 1 of 2"})
        self.assertEqual(sum(f" 127.0.0.1, 1 lo {self.folder}/nccl:{self.folder}/lib" in x for x in self.asked()), 2)
        config = (self.folder / "out-third/nccl-zero3-nccl.toml").read_text()
        self.assertIn("layout.zero = 3\n", config)
        self.assertEqual((self.folder / "out-third/problems/two_ranks.bin").stat().st_size, 80000)

    def test_two_ranks_that_learn_otherwise_fail(self):
        self.assertEqual(self.two_ranks("2.001")["nccl-zero3"][0], "failed")
        self.assertEqual(self.two_ranks("2.0", 7)["nccl-zero3"][0], "failed")
        self.assertEqual(self.two_ranks("2.0; exit 3")["nccl-zero3"], ("failed", "not all ranks ended well"))

    def test_every_op_under_every_sanitizer(self):
        self.pretend()
        code, rows, out = self.call("sanitize")
        self.assertEqual(code, 1)
        for kind in sanitize.SANITIZERS:
            for op in ("zero", "matmul", "attention-sm90", "attention_backward-sm90"):
                bad = (kind, op) == ("racecheck", "matmul")
                self.assertEqual(rows[f"{kind}:{op}"][0], "failed (99)" if bad else "passed", (kind, op))
                self.assertIn("Race reported" if bad else "ERROR SUMMARY: 0 errors", rows[f"{kind}:{op}"][1])
        self.assertIn("matmul is well", (out / "memcheck.log").read_text())

    def test_a_sanitizer_that_does_not_follow_env_starts_the_program_itself(self):
        self.pretend()
        (self.folder / "no_env").touch()
        found = [("x", "attention", SM90_CLASSES["fwd-64"][1])]
        _, rows, _ = self.call("second", lambda c: sanitize.lines_of_sm90(c, found, ("memcheck",), 30, 1))
        self.assertEqual(rows["compute-sanitizer:start"][0], "failed (what it said)")
        self.assertEqual(rows["memcheck:x attention"], ("passed", "========= ERROR SUMMARY: 0 errors"))
        self.assertTrue(self.asked()[-1].endswith(f"{self.folder}/lib"))

    def test_without_a_sanitizer_it_says_so(self):
        self.pretend()
        with mock.patch.object(environment, "find_tool", return_value=None):
            code, rows, _ = self.call("sanitize")
        self.assertEqual((code, list(rows)), (1, ["device", "compute-sanitizer"]))


class Lines(unittest.TestCase):
    """On the lines that the repository has."""
    OPS = TOOLS.parent / "tests/ops"

    def test_every_line_of_the_kernels_for_sm_90a_has_one_class(self):
        lines, bounds = problems.read(self.OPS / "problems")
        classes = {}
        for op in sm90.OPS:
            self.assertTrue(bounds[op])
            for line in lines[op]:
                classes.setdefault(sm90.class_of(op, line), []).append(line)
        self.assertEqual(set(classes) - {None}, set(sm90.CLASSES))
        for name in sm90.CLASSES:
            self.assertGreaterEqual(len(classes[name]), 2, name)
        # Another kernel takes these: no 16 bits, rows that are not aligned, a negative scale.
        self.assertIn("attention s=50 h=2 d=24 scale=-0.7 dtype=bf16", classes[None])
        self.assertIn("attention s=129 h=6 kv=2 d=37 dtype=bf16 pad=3 offset=1", classes[None])

    def test_widths_are_those_of_the_source(self):
        source = (TOOLS.parent / "src/device/cuda/attention_widths.h").read_text()
        table = re.search(r"kHeadWidths\[\] = \{(.*)\};", source)[1]
        self.assertEqual([tuple(map(int, w)) for w in re.findall(r"\{(\d+), (\d+)\}", table)], sm90.WIDTHS)

    def test_attention_has_lines_for_every_length_and_width(self):
        lines, _ = problems.read(self.OPS / "gpu")
        for op in sm90.OPS:
            seen = {(k.get("s"), k.get("d")) for k in (problems.keys_of(x)[1] for x in lines[op])}
            lengths = measure.LENGTHS + measure.LONG
            self.assertLessEqual({(str(s), str(d)) for s in lengths for d in measure.WIDTHS}, seen, op)

    def test_profiled_kernels_are_in_the_source(self):
        source = "".join(p.read_text() for p in (TOOLS.parent / "src/device/cuda").glob("*.cu*"))
        self.assertEqual([kernel for kernel, _ in measure.PROFILED if not re.search(kernel, source)], [])

    def test_lines_of_several_files_share_the_first_bound_per_type(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "a.txt").write_text("bound bf16 nmse=1 worst=1\nbound f32 nmse=1 worst=1\nmatmul m=1 for=perf\n")
            (folder / "b.txt").write_text("bound bf16 nmse=2 worst=2\nmatmul m=2 for=perf,test # text\nadd n=1 for=perf\n")
            staged = problems.stage(folder / "x", folder, lambda op, line: problems.is_for(line, "perf"))
            self.assertEqual(staged, {"matmul": ["matmul m=1 for=perf", "matmul m=2 for=perf,test"], "add": ["add n=1 for=perf"]})
            self.assertEqual((folder / "x/matmul.txt").read_text().splitlines()[:3],
                             ["bound bf16 nmse=1 worst=1", "bound f32 nmse=1 worst=1", "matmul m=1 for=perf"])
            self.assertEqual((folder / "x/add.txt").read_text().splitlines()[0], "bound bf16 nmse=2 worst=2")

    def test_the_failing_line_of_a_run(self):
        staged = {"attention": ["attention s=1", "attention s=2"], "attention_backward": ["attention_backward s=3"]}
        self.assertEqual(sm90.failing_line(staged, "  attention s=1 threads=1 o: nmse 0\n"), ("attention", "attention s=2"))
        self.assertEqual(sm90.failing_line(staged, "x\nFAIL attention_backward s=3 (a.txt:1, 1 threads): off\n"),
                         ("attention_backward", "attention_backward s=3"))
        self.assertEqual(sm90.failing_line(staged, ""), ("attention", "attention s=1"))


if __name__ == "__main__":
    unittest.main()
