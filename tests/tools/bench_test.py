"""The benchmark table says what was measured: medians, floors, ratios, and whose processor time it was."""
import pathlib
import sys
import time
import types
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import collectives  # noqa: E402
import lines  # noqa: E402
import report  # noqa: E402
import training  # noqa: E402
from step import MODELS, forward_flops  # noqa: E402

PEAKS = {"f32": 1e12, "bf16": 2e12, "memory": 1e11}
RESULT = {"compute": "bf16", "peaks": PEAKS, "step_s": [1.0, 3.0, 2.0], "peak_beside": [2e12, 1e12, 2e12],
          "ops": [{"op": "adamw", "flops": 1e9, "bytes": 2e9, "s": 0.04},
                  {"op": "matmul", "flops": 1e12, "bytes": 1e9, "s": 1.0},
                  {"op": "matmul", "flops": 1e12, "bytes": 1e9, "s": 0.6}]}


class Table(unittest.TestCase):
    def test_step_line(self):
        peers = {("autocast", "eager"): [6.0, 5.0, 7.0], ("autocast", "compile"): [4.0, 4.5, 5.0],
                 ("bf16", "eager"): [3.0, 3.0]}
        line = training.step_line(None, "gpt2-124m", "bf16", 2, [RESULT], peers, 0.125)
        flops = 3 * forward_flops(MODELS["gpt2-124m"])
        self.assertEqual(line["step ms"], 2000.0)
        self.assertEqual(line["tokens/s"], 512)
        self.assertEqual(line["MFU"], f"{100 * flops / 2 / 2e12:.1f} %")
        self.assertEqual(line["MFU beside"], f"{100 * flops / 3 / 1e12:.1f} %")  # of the middle one of the three
        self.assertEqual(line["floor ms"], round(1e3 * (flops / 2e12 + 2e9 / 1e11), 1))
        self.assertEqual(line["torch autocast compile"], round(1024 / 4.5))
        self.assertEqual(line["torch f32 eager"], "-")
        self.assertEqual(line["x torch, same precision"], 2.25)
        self.assertEqual(line["x torch, any"], 1.5)
        self.assertEqual(line["others' CPU"], "12.5 %")

    def test_ops_are_held_against_the_roof_that_binds_them(self):
        matmul, adamw = training.op_lines("gpt2-124m", "bf16", 2, RESULT, 0)
        self.assertEqual((matmul["op"], matmul["ms a step"], matmul["floor ms"]), ("matmul", 1600.0, 1000.0))
        self.assertEqual((matmul["GFLOP/s"], matmul["of the roof"]), (1250.0, "62.5 %"))
        self.assertEqual((adamw["GB/s"], adamw["floor ms"], adamw["of the roof"]), (50.0, 20.0, "50.0 %"))

    def test_markdown_leaves_out_columns_that_nothing_fills(self):
        text = report.markdown(lines.Section("T", "make bench", [{"a": 1, "b": "-"}, {"a": 2, "b": "-"}], "note"))
        self.assertIn("| a |\n| --- |\n| 1 |\n| 2 |\n\nnote", text)

    def test_collectives_are_counted_by_their_bus(self):
        x = {"op": "all_reduce", "bytes": 1 << 20, "seconds": 1e-3, "memory": 4e9, "triad": 5e9}
        key = ("all_reduce", 1 << 20)
        line = collectives.table_line(x, {key: 2e-3}, {key: 5e-3}, {}, {key: 4e-3}, 2)
        self.assertEqual((line["KiB"], line["busbw GB/s"], line["of triad"]), ("1,024", "1.05", "80.0 %"))
        self.assertEqual((line["halving, x the time"], line["OpenMPI busbw"], line["Gloo busbw"]), ("2.00", "-", "0.26"))
        self.assertEqual(line["processes busbw"], "0.21")
        gather = collectives.table_line(dict(x, op="all_gather"), {("all_gather", 1 << 20): 1e-3}, {}, {}, {}, 4)
        self.assertEqual(gather["busbw GB/s"], "0.79")

    def test_own_time_is_not_others(self):
        with lines.Load() as load:
            end = time.monotonic() + 0.2
            while time.monotonic() < end:
                pass
        self.assertTrue(0 <= load.others <= 1)
        stat, own = iter([10.0, 16.0]), iter([1.0, 3.0])
        fake = types.SimpleNamespace(_busy=lambda: next(stat), _own=lambda: next(own), _begin=None)
        lines.Load.__enter__(fake)
        fake._begin = (fake._begin[0] - 10.0, *fake._begin[1:])  # ten seconds: 6 busy, 2 of them ours
        lines.Load.__exit__(fake)
        self.assertAlmostEqual(fake.others, 4 / (10 * lines.os.cpu_count()), places=3)


if __name__ == "__main__":
    unittest.main()
