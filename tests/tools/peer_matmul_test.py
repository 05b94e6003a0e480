"""tools/peer_matmul.py reads the op harness's matmul lines, and its output can be read again."""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/peer_matmul.py"
spec = importlib.util.spec_from_file_location("peer_matmul", SCRIPT)
peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)


class PeerMatmul(unittest.TestCase):
    def test_lines_are_the_harness_s(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("bound bf16 nmse=1 worst=1\nmatmul m=2 n=3 k=4 dtype=bf16 trans_b=1 bias=1 for=perf  # text\n"
                    "matmul m=2 n=3 k=4 trans_b=1 for=perf\nmatmul_gelu m=1 n=1 k=1 dtype=bf16\n"
                    "matmul m=7 n=8 k=9 dtype=bf16 trans_a=1 out=f32 accumulate=1\n")
            f.flush()
            got = list(peer.problems([f.name]))
        self.assertEqual(got, [("m=2 n=3 k=4 dtype=bf16 trans_b=1 bias=1", 2, 3, 4, False, True),
                               ("m=7 n=8 k=9 dtype=bf16 trans_a=1 out=f32 accumulate=1", 7, 8, 9, True, False)])
        self.assertEqual(peer.flops(2, 3, 4), 48)

    def test_what_it_prints_is_read_again(self):
        self.assertEqual(peer.told("NVIDIA H100, PyTorch 2.11\nTFLOP/s of torch.mm, bf16\n   612.5  m=2 n=3 k=4 dtype=bf16\n"),
                         [("m=2 n=3 k=4 dtype=bf16", 612.5)])

    def test_products_are_those_of_the_line(self):
        """On a processor, by a module that stands for torch: which operands are stored turned."""
        class Turned:
            def __init__(self, *shape, **_):
                self.shape = shape

            def t(self):
                return ("turned", self.shape)

        class Event:
            def __init__(self, **_):
                pass

            def record(self):
                pass

            synchronize = record

            def elapsed_time(self, _):
                return 40.0

        class Torch:
            bfloat16, seen = None, []
            randn = staticmethod(lambda *shape, **_: Turned(*shape))
            empty = staticmethod(lambda *shape, **_: shape)
            cuda = type("cuda", (), {"Event": Event})

            @classmethod
            def mm(cls, a, b, out):
                cls.seen.append((getattr(a, "shape", a), getattr(b, "shape", b), out))

        self.assertEqual(peer.seconds(Torch, 2, 3, 4, True, False), 40e-3 / peer.TOGETHER)
        self.assertEqual(len(Torch.seen), peer.WARM + peer.TIMES * peer.TOGETHER)
        self.assertEqual(set(Torch.seen), {(("turned", (4, 2)), (4, 3), (2, 3))})

    def test_nothing_to_measure_is_said(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            done = subprocess.run([sys.executable, SCRIPT, f.name], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no 16-bit line of op matmul", done.stderr)


if __name__ == "__main__":
    unittest.main()
