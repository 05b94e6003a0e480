"""tools/peer_attention.py reads the op harness's lines and counts FLOPs as FlashAttention's papers do."""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/peer_attention.py"
spec = importlib.util.spec_from_file_location("peer_attention", SCRIPT)
peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)


class PeerAttention(unittest.TestCase):
    def problems(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write(text)
            f.flush()
            return list(peer.problems(f.name))

    def test_lines_are_the_harness_s(self):
        got = self.problems("# text\nbound bf16 nmse=1e-5 worst=1\nattention b=4 s=512 h=8 kv=2 d=64 dtype=bf16 for=perf\n"
                            "attention s=100 d=192 dv=128 causal=0\nattention_backward s=3 d=8\n")
        self.assertEqual(got, [{"b": 4, "s": 512, "h": 8, "kv": 2, "d": 64, "dv": 64, "causal": True},
                               {"b": 1, "s": 100, "h": 1, "kv": 1, "d": 192, "dv": 128, "causal": False}])

    def test_flops(self):
        whole = {"b": 2, "s": 1000, "h": 3, "d": 64, "dv": 64, "causal": False}
        product = 2 * 2 * 1000 * 1000 * 3  # of one column
        self.assertEqual(peer.flops(whole), (2 * 64 * product, 2.5 * 2 * 64 * product))
        self.assertEqual(peer.flops(whole | {"causal": True}), (64 * product, 2.5 * 64 * product))
        self.assertEqual(peer.flops(whole | {"d": 192, "dv": 128}), (320 * product, (3 * 192 + 2 * 128) * product))

    def test_what_it_prints_is_read_again(self):
        p = {"b": 2, "s": 1000, "h": 3, "kv": 1, "d": 64, "dv": 64, "causal": True}
        told = peer.told("a GPU, PyTorch 2, cuDNN 9\nTFLOP/s: cuDNN forward, backward; FlashAttention forward, backward\n"
                         "  512.0   430.1        -       - b=2 s=1000 h=3 kv=1 d=64 dv=64 causal=1\n")
        self.assertEqual(told, [(p, {"cudnn": (512.0, 430.1), "flash": (None, None)})])

    def test_the_file_that_gpu_check_gives_it(self):
        self.assertGreater(len(list(peer.problems(SCRIPT.parents[1] / "tests/ops/gpu/attention.txt"))), 3)

    def test_nothing_to_measure_is_said(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            done = subprocess.run([sys.executable, SCRIPT, f.name], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no line of op attention", done.stderr)


if __name__ == "__main__":
    unittest.main()
